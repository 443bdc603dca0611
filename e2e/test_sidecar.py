"""The sidecar's own process beside a live vLLM on the CPU, told what to do by a fake operator."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from e2e.engine.token_prompts import tokens
from e2e.fake_operator import FakeOperator, phase_of
from e2e.sidecar_stand import START_S, Engine, engine_in, sidecar_metric, start_sidecar, tell
from e2e.waiting import until
from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, Phase, Placement, PlacementState

pytestmark = pytest.mark.timeout(900)

MAX_RSS_MB = 90.0
LONG_S = 120.0
POLL_S = 0.2
TOOLS = (
    '[{"type":"function","function":{"name":"lookup","description":"Finds an order",'
    '"parameters":{"type":"object","properties":{"zip":{"type":"string"},"age":{"minimum":1.0}}}}}]'
)
TRIAGE = Payload(
    systemInstructions="You sort support requests by urgency and team. " * 60,
    toolDefinitions=TOOLS,
)
TRANSLATION = Payload(systemInstructions="You translate legal texts word by word. " * 60)


@dataclass(frozen=True)
class Stand:
    """Everything around one sidecar."""

    engine: Engine
    operator: FakeOperator
    sidecar: subprocess.Popen[bytes]
    port: int
    log: Path

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.sidecar.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}")

    async def cached_tokens(self, payload: Payload, user: str) -> int:
        """Send a user's chat request with the declared text; return how much was cached."""
        messages = [
            {"role": "system", "content": payload.system},
            {"role": "user", "content": user},
        ]
        body: dict[str, object] = {"model": "demo", "messages": messages, "max_tokens": 1}
        if payload.tools:
            body["tools"] = payload.tools
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(f"{self.engine.url}/v1/chat/completions", json=body)
        answer.raise_for_status()
        details = answer.json()["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"])

    async def press(self) -> None:
        """Send other traffic of three times the cache's size."""
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            for number in range(6):
                body = {"model": "demo", "prompt": tokens(number, 2048), "max_tokens": 1}
                (
                    await client.post(f"{self.engine.url}/v1/completions", json=body)
                ).raise_for_status()


@contextlib.asynccontextmanager
async def stand_in(folder: Path, *, plugin: bool, **more: str) -> AsyncIterator[Stand]:
    with engine_in(folder, plugin=plugin) as engine:
        operator = FakeOperator(folder)
        async with operator.serving():
            process, port = start_sidecar(folder, operator, engine, **more)
            try:
                stand = Stand(engine, operator, process, port, folder / "sidecar.log")
                await operator.until(lambda s: s.engine.healthy, START_S)
                yield stand
            finally:
                process.terminate()
                process.wait(10)
                tell((folder / "sidecar.log").read_text()[-3000:])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    async with stand_in(tmp_path_factory.mktemp("sidecar"), plugin=True) as running:
        yield running


def state_of(stand: Stand, placement: Placement) -> PlacementState:
    return next(p for p in stand.operator.states[-1].placements if p.id == placement.id)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_prefix_is_pinned_and_survives_traffic(stand: Stand) -> None:
    placement = stand.operator.placement("triage", TRIAGE)
    await stand.operator.want([placement])
    state = await stand.operator.warm(placement)
    assert state.pinned is Pinning.HARD
    assert state.tokens == state.resident_tokens == state.pinned_tokens >= 512
    assert HARD_PINS in stand.operator.states[-1].engine.capabilities
    assert await stand.cached_tokens(TRIAGE, "Where is my parcel?") == state.tokens
    await stand.press()
    assert await stand.cached_tokens(TRIAGE, "(urgent) 订单在哪里?") == state.tokens
    reported = await stand.operator.until(
        lambda s: any(p.last_hit is not None for p in s.placements), 60
    )
    assert reported.engine.blocks_pinned == state.tokens // reported.engine.block_size
    await _until_ready(stand, 200)


@pytest.mark.asyncio(loop_scope="module")
async def test_pins_are_held_and_renewed_while_the_operator_is_away(
    stand: Stand, tmp_path: Path
) -> None:
    """A second sidecar has an operator that goes away for more than one lease."""
    operator = FakeOperator(tmp_path)
    process: subprocess.Popen[bytes] | None = None
    placement = operator.placement("away", TRANSLATION)
    await stand.operator.want([])
    await stand.operator.until(lambda s: not s.placements, 60)
    stand.sidecar.send_signal(signal.SIGSTOP)  # one sidecar per engine
    try:
        async with operator.serving():
            await operator.want([placement])
            process, port = start_sidecar(
                tmp_path, operator, stand.engine, PROMPTPREFIX_LEASE_S="15"
            )
            warm = await operator.warm(placement)
            assert warm.pinned is Pinning.HARD
        commands = await sidecar_metric(port, "own_prompt_tokens_total")

        async def outlasted() -> bool:
            # A report a second and three renewals a lease, of one token each: over one lease.
            return await sidecar_metric(port, "own_prompt_tokens_total") > commands + 25

        await until(outlasted, "the lease is outlasted", LONG_S, POLL_S)
        await stand.press()
        assert await stand.cached_tokens(TRANSLATION, "Guten Tag") == warm.tokens
        assert await sidecar_metric(port, "sync_errors_total") > 0
    finally:
        stand.sidecar.send_signal(signal.SIGCONT)
        if process is not None:
            process.terminate()
            process.wait(10)
    # Its pin is unknown to the sidecar that goes on, which gives it up.
    await stand.operator.until(lambda s: s.engine.blocks_pinned == 0, 60)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_edit_is_warm_before_the_old_text_goes_and_deleting_unpins(stand: Stand) -> None:
    edited = Payload(
        systemInstructions=TRIAGE.systemInstructions,
        toolDefinitions=TOOLS,
        defaultModeSpecs="Answer in one word.",
    )
    old = stand.operator.placement("triage", TRIAGE)
    new = stand.operator.placement("triage", edited)
    await stand.operator.want([old])
    await stand.operator.warm(old)
    await stand.operator.want([new, old])
    fresh = await stand.operator.warm(new)
    assert phase_of(stand.operator.states[-1], old) is Phase.WARM
    assert state_of(stand, old).pinned is Pinning.HARD
    await stand.operator.want([new])
    await stand.operator.until(lambda s: phase_of(s, old) is None, 60)
    assert await stand.cached_tokens(edited, "Hello") == fresh.tokens
    await stand.operator.want([])
    await stand.operator.until(lambda s: not s.placements and s.engine.blocks_pinned == 0, 60)
    await stand.press()
    assert await stand.cached_tokens(edited, "Hello again") == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_engine_is_warmed_again(stand: Stand) -> None:
    placement = stand.operator.placement("triage", TRIAGE)
    await stand.operator.want([placement])
    before = await stand.operator.warm(placement)
    epoch = stand.operator.states[-1].engine.epoch
    await _until_ready(stand, 200)
    stand.engine.kill()
    await stand.operator.until(lambda s: not s.engine.healthy, 10)
    assert (await stand.get("/readyz")).status_code == 503
    stand.engine.start()
    await stand.operator.until(lambda s: s.engine.healthy and s.engine.epoch != epoch, START_S)
    after = await stand.operator.warm(placement)
    assert after.token_digest == before.token_digest
    assert after.pinned is Pinning.HARD
    assert await stand.cached_tokens(TRIAGE, "Hello") == after.tokens
    await _until_ready(stand, 200)
    assert await sidecar_metric(stand.port, "engine_restarts_total") == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_memory_and_secrets(stand: Stand) -> None:
    tell(f"sidecar: {stand.rss_mb():.1f} MB resident")
    assert stand.rss_mb() <= MAX_RSS_MB
    page = (await stand.get("/metrics")).text
    for text in (page, stand.log.read_text()):
        assert "sort support requests" not in text


@pytest.mark.asyncio(loop_scope="module")
async def test_without_the_plugin_pins_are_soft_and_say_why(tmp_path: Path) -> None:
    more = {"PROMPTPREFIX_TOUCH_INTERVAL_S": "0.5"}
    async with stand_in(tmp_path, plugin=False, **more) as stand:
        placement = stand.operator.placement("triage", TRIAGE)
        await stand.operator.want([placement])
        state = await stand.operator.warm(placement)
        assert (state.pinned, state.reason) == (Pinning.SOFT, "SoftPinned")
        assert "--scheduler-cls" in state.message
        assert state.resident_tokens == state.tokens
        assert state.pinned_tokens == 0
        assert HARD_PINS not in stand.operator.states[-1].engine.capabilities
        assert await stand.cached_tokens(TRIAGE, "Hello") == state.tokens


async def _until_ready(stand: Stand, status: int) -> None:
    async def answers() -> bool:
        return (await stand.get("/readyz")).status_code == status

    await until(answers, f"/readyz answers {status}", LONG_S, POLL_S)
