"""The sidecar beside a live vLLM: chunks, released prefixes, salts, sleep and cache resets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from e2e.fake_operator import FakeOperator, phase_of
from e2e.sidecar_stand import START_S, Engine, engine_in, start_sidecar, tell
from promptprefix.payload import Payload
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase, Placement, PlacementState

pytestmark = [pytest.mark.timeout(480), pytest.mark.asyncio(loop_scope="module")]

CHUNK = 192
COMPUTED_BUCKET = 200
"""The engine's histogram has a bucket that ends just above a chunk and one token."""

TRIAGE = Payload(systemInstructions="You sort support requests by urgency and team. " * 60)
SALT = "a secret of tenant a"
OTHER_SALT = "a secret of tenant b"


@dataclass(frozen=True)
class Stand:
    """Everything around one sidecar."""

    engine: Engine
    operator: FakeOperator
    log: Path

    async def post(self, path: str, body: object = None) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            answer = await client.post(f"{self.engine.url}{path}", json=body)
        return answer.raise_for_status()

    async def metric(self, name: str, labels: str) -> float:
        """Return the sum of the engine's series whose labels hold ``labels``."""
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"{self.engine.url}/metrics")).text
        found = re.findall(rf"^{re.escape(name)}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
        return sum(float(value) for text, value in found if labels in text)

    async def cached_tokens(self, user: str, salt: str = "") -> int:
        """Send a user's chat request with the declared text; return how much was cached."""
        messages = [
            {"role": "system", "content": TRIAGE.system},
            {"role": "user", "content": user},
        ]
        body: dict[str, object] = {"model": "demo", "messages": messages, "max_tokens": 1}
        if salt:
            body["cache_salt"] = salt
        answer = await self.post("/v1/chat/completions", body)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def released(self, placement: Placement) -> PlacementState:
        state = await self.operator.until(
            lambda s: phase_of(s, placement) is Phase.RELEASED, timeout_s=60
        )
        return next(each for each in state.placements if each.id == placement.id)

    async def nothing(self) -> None:
        """End a test with an engine that holds nothing of ours."""
        await self.operator.want([])
        await self.operator.until(
            lambda s: not s.placements and s.engine.blocks_pinned == 0, timeout_s=60
        )
        await self.post("/reset_prefix_cache")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    folder = tmp_path_factory.mktemp("sidecar")
    development = {"VLLM_SERVER_DEV_MODE": "1"}  # reset, sleep and wake are open to tests only
    with engine_in(folder, plugin=True, **development) as engine:
        operator = FakeOperator(folder)
        async with operator.serving():
            chunk = {"PROMPTPREFIX_WARM_CHUNK_TOKENS": str(CHUNK)}
            process, _ = start_sidecar(folder, operator, engine, **chunk)
            try:
                await operator.until(lambda s: s.engine.healthy, START_S)
                yield Stand(engine, operator, folder / "sidecar.log")
            finally:
                process.terminate()
                process.wait(10)
                tell((folder / "sidecar.log").read_text()[-3000:])


async def test_a_long_prefix_is_computed_in_chunks(stand: Stand) -> None:
    placement = stand.operator.placement("triage", TRIAGE)
    await stand.operator.want([placement])
    state = await stand.operator.warm(placement)
    assert state.tokens >= 2 * CHUNK
    assert (state.pinned, state.pinned_tokens) == (Pinning.HARD, state.tokens)
    assert state.heads
    engine = stand.operator.states[-1].engine
    assert engine.budget_blocks >= state.tokens // engine.block_size
    name = "vllm:request_prefill_kv_computed_tokens"
    requests = await stand.metric(f"{name}_count", "")
    within = await stand.metric(f"{name}_bucket", f'le="{COMPUTED_BUCKET}.0"')
    tell(f"chunks: {state.tokens} tokens, {requests:.0f} requests, {within:.0f} within a chunk")
    assert requests > state.tokens / CHUNK
    assert within == requests
    assert await stand.cached_tokens("Where is my parcel?") == state.tokens
    await stand.nothing()


@pytest.mark.parametrize(("how", "left"), [(OnIdle.KEEP, True), (OnIdle.EVICT, False)])
async def test_released_and_warmed_again_after_a_match(
    stand: Stand, how: OnIdle, left: bool
) -> None:
    # The engine remembers matches by placement: one of its own for each test.
    placement = stand.operator.placement(f"released-{how.lower()}", TRIAGE)
    await stand.operator.want([placement])
    warm = await stand.operator.warm(placement)
    assert warm.last_hit is None
    await stand.operator.want([placement.model_copy(update={"release": how})])
    state = await stand.released(placement)
    assert (state.released, state.reason, state.pinned) == (how, "", Pinning.NONE)
    await stand.operator.until(lambda s: s.engine.blocks_pinned == 0, timeout_s=60)
    assert all(each.last_hit is None for each in stand.operator.states[-1].placements)
    assert await stand.cached_tokens("Hello") == (warm.tokens if left else 0)
    await stand.operator.until(
        lambda s: any(each.last_hit is not None for each in s.placements), timeout_s=60
    )
    await stand.operator.want([placement])
    again = await stand.operator.warm(placement)
    assert again.pinned is Pinning.HARD
    assert f"{warm.tokens} from device" in again.message
    await stand.nothing()


async def test_equal_texts_with_other_salts_share_no_block(stand: Stand) -> None:
    ours = stand.operator.placement("ours", TRIAGE, salt=SALT)
    theirs = stand.operator.placement("theirs", TRIAGE, salt=OTHER_SALT)
    await stand.operator.want([ours])
    state = await stand.operator.warm(ours)
    assert await stand.cached_tokens("Hello") == 0
    assert await stand.cached_tokens("Hello", OTHER_SALT) == 0
    assert await stand.cached_tokens("Hello", SALT) == state.tokens
    await stand.operator.want([ours, theirs])
    await stand.operator.warm(theirs)
    engine = stand.operator.states[-1].engine
    assert engine.blocks_pinned == 2 * state.tokens // engine.block_size
    assert await stand.cached_tokens("Hello again", OTHER_SALT) == state.tokens
    for text in (stand.log.read_text(), (stand.engine.folder / "engine.log").read_text()):
        assert SALT not in text
        assert OTHER_SALT not in text
    await stand.nothing()


async def test_a_cache_reset_is_healed(stand: Stand) -> None:
    hard = stand.operator.placement("hard", TRIAGE)
    none = stand.operator.placement("none", TRIAGE, Pinning.NONE, salt=SALT)
    await stand.operator.want([hard, none])
    state = await stand.operator.warm(hard)
    await stand.operator.warm(none)
    await stand.post("/reset_prefix_cache")
    assert await stand.metric("vllm:kv_cache_usage_perc", "") == pytest.approx(0, abs=0.01)
    await stand.operator.until(lambda s: phase_of(s, hard) is not Phase.WARM, timeout_s=60)
    assert (await stand.operator.warm(hard)).pinned is Pinning.HARD
    await stand.operator.warm(none)
    assert await stand.cached_tokens("Hello") == state.tokens
    assert await stand.cached_tokens("Hello", SALT) == state.tokens
    await stand.nothing()


async def test_sleep_is_told_and_what_it_took_is_warmed_again(stand: Stand) -> None:
    placement = stand.operator.placement("triage", TRIAGE)
    await stand.operator.want([placement])
    state = await stand.operator.warm(placement)
    await stand.post("/sleep?level=1")
    asleep = await stand.operator.until(lambda s: s.engine.asleep, timeout_s=60)
    assert asleep.engine.healthy
    assert [each.reason for each in asleep.placements] == ["EngineAsleep"]
    await stand.operator.until(lambda s: not s.ready, timeout_s=60)
    await stand.post("/wake_up")
    awake = await stand.operator.until(
        lambda s: not s.engine.asleep and phase_of(s, placement) is Phase.WARM, timeout_s=60
    )
    assert awake.placements[0].pinned is Pinning.HARD
    await stand.operator.until(lambda s: s.ready, timeout_s=60)
    assert await stand.cached_tokens("Hello") == state.tokens
