"""The sidecar follows the KV events of a live vLLM on the CPU: residency, evictions, resets, gaps.

Touches are an hour apart here, so what is noticed is noticed by events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from e2e.engine.token_prompts import tokens
from e2e.fake_operator import FakeOperator
from e2e.sidecar_stand import START_S, Engine, engine_in, sidecar_metric, start_sidecar, tell
from e2e.waiting import until
from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import Placement, PlacementState, SidecarState
from promptprefix_sidecar.kv_events.counters import PREFIX, Counters
from promptprefix_sidecar.kv_events.events import Batch, Stored
from promptprefix_sidecar.kv_events.subscriber import Endpoints, Subscriber

pytestmark = pytest.mark.timeout(900)

BLOCK = 32
HOUR = "3600"
SOON_S = 60.0
TRIAGE = Payload(systemInstructions="You sort support requests by urgency and team. " * 60)
SALT = "tenant-a-secret"


@dataclass(frozen=True)
class Stand:
    """An engine that publishes its events, and an operator that tells sidecars beside it."""

    folder: Path
    engine: Engine
    operator: FakeOperator

    @property
    def events(self) -> str:
        return f"ipc://{self.folder}/events"

    @property
    def replay(self) -> str:
        return f"ipc://{self.folder}/replay"

    @contextlib.contextmanager
    def sidecar(self, name: str, **more: str) -> Iterator[int]:
        """Run a sidecar; yields its port."""
        folder = self.folder / name
        folder.mkdir()
        settings = {
            "PROMPTPREFIX_KV_EVENTS_ENDPOINT": self.events,
            "PROMPTPREFIX_KV_EVENTS_REPLAY_ENDPOINT": self.replay,
            "PROMPTPREFIX_KV_EVENTS_TOPIC": "kv",
            "PROMPTPREFIX_TOUCH_INTERVAL_S": HOUR,
            **more,
        }
        self.operator.states.clear()  # what the sidecar before it said
        process, port = start_sidecar(folder, self.operator, self.engine, **settings)
        try:
            yield port
        finally:
            _stop(process)
            text = (folder / "sidecar.log").read_text()
            tell(text[-3000:])
            assert SALT not in text
            assert "sort support" not in text

    async def complete(self, prompt: list[int], **more: object) -> None:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 1, **more}
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            (await client.post(f"{self.engine.url}/v1/completions", json=body)).raise_for_status()

    async def press(self) -> None:
        """Send other traffic of three times the cache's size."""
        for number in range(6):
            await self.complete(tokens(number, 2048))

    async def reset(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            (await client.post(f"{self.engine.url}/reset_prefix_cache")).raise_for_status()
        await self.complete([7] * 8)  # the engine tells of it with its next step

    async def cached_tokens(self, user: str, **more: object) -> int:
        """Send a user's chat request with the declared text; return how much was cached."""
        messages = [
            {"role": "system", "content": TRIAGE.system},
            {"role": "user", "content": user},
        ]
        body = {"model": "demo", "messages": messages, "max_tokens": 1, **more}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(f"{self.engine.url}/v1/chat/completions", json=body)
        answer.raise_for_status()
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def until_engine(self, condition: Callable[[SidecarState], bool]) -> None:
        await self.operator.until(condition, START_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


@contextlib.asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Stand]:
    """Start the engine and the operator."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    flags = ("--kv-events-config", json.dumps(config))
    with engine_in(folder, plugin=False, extra=flags, VLLM_SERVER_DEV_MODE="1") as engine:
        operator = FakeOperator(folder)
        async with operator.serving():
            yield Stand(folder, engine, operator)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    async with standing(tmp_path_factory.mktemp("kv")) as made:
        yield made


async def until_healthy(engine: Engine) -> None:
    async def healthy() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            with contextlib.suppress(httpx.HTTPError):
                return (await client.get(f"{engine.url}/health")).is_success
        return False

    await until(healthy, "the engine is healthy", START_S, 0.5)


async def until_metric(port: int, name: str, value: float, within: float = SOON_S) -> None:
    async def reached() -> bool:
        return await sidecar_metric(port, name) == value

    await until(reached, f"{name} is {value:g}", within, 0.1)


async def until_resident(port: int, tokens: int, within: float) -> None:
    """Ask the sidecar itself: what the operator has heard last may be older than a loss."""
    await until_metric(port, "resident_tokens", tokens, within)


async def until_evicted(port: int, before: float) -> None:
    """Noise may evict it more than once: it is warmed again while the noise goes on."""

    async def evicted() -> bool:
        return await sidecar_metric(port, "premature_evictions_total") > before

    await until(evicted, "it is evicted", SOON_S, 0.1)


async def warm(stand: Stand, placement: Placement) -> PlacementState:
    await stand.until_engine(lambda s: s.engine.healthy)
    await stand.operator.want([placement])
    return await stand.operator.warm(placement)


@pytest.mark.asyncio(loop_scope="module")
async def test_residency_follows_prefill_eviction_and_reset(stand: Stand) -> None:
    placement = stand.operator.placement("triage", TRIAGE, Pinning.SOFT)
    await stand.operator.want([])
    with stand.sidecar("life") as port:
        state = await warm(stand, placement)
        assert state.tokens == state.resident_tokens >= 512
        await until_metric(port, "kv_events_index_blocks", state.tokens // BLOCK)
        assert await sidecar_metric(port, "premature_evictions_total") == 0

        await stand.press()
        await until_evicted(port, 0)
        await until_resident(port, state.tokens, 60)
        assert await stand.cached_tokens("Where is my parcel?") == state.tokens

        evictions = await sidecar_metric(port, "premature_evictions_total")
        await stand.reset()
        await until_evicted(port, evictions)
        # A second loss so soon after the first is warmed after a pause.
        await until_resident(port, state.tokens, 150)
        assert await stand.cached_tokens("Hello") == state.tokens
        assert await sidecar_metric(port, "kv_events_gaps_total") == 0
        assert await sidecar_metric(port, "kv_events_unknown_total") == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_sidecar_that_starts_later_asks_the_engine_to_tell_of_the_blocks(
    stand: Stand,
) -> None:
    """Hits make no events: a touch that asks for a report is the proof."""
    placement = stand.operator.placement("triage", TRIAGE, Pinning.SOFT)
    await stand.operator.want([])
    with stand.sidecar("later", PROMPTPREFIX_TOUCH_INTERVAL_S="1") as port:
        state = await warm(stand, placement)
        await until_metric(port, "kv_events_index_blocks", state.tokens // BLOCK)
        assert await sidecar_metric(port, "premature_evictions_total") == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_salted_prefix_has_blocks_of_its_own(stand: Stand) -> None:
    plain = stand.operator.placement("triage", TRIAGE, Pinning.NONE)
    salted = stand.operator.placement("salted", TRIAGE, Pinning.SOFT, salt=SALT)
    await stand.operator.want([])
    with stand.sidecar("salted") as port:
        await stand.until_engine(lambda s: s.engine.healthy)
        await stand.reset()
        state = await warm(stand, salted)
        await until_metric(port, "kv_events_index_blocks", state.tokens // BLOCK)
        assert await stand.cached_tokens("Hello", cache_salt=SALT) == state.tokens
        assert await stand.cached_tokens("Hello") == 0
        # The user's request just computed the plain one: equal tokens, other blocks.
        await stand.reset()
        await until_metric(port, "premature_evictions_total", 1)
        await stand.operator.want([salted, plain])
        await stand.operator.until(lambda s: _is_warm(s, salted) and _is_warm(s, plain), 60)
        await until_metric(port, "kv_events_index_blocks", 2 * state.tokens // BLOCK)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_that_restarts_at_the_same_endpoint_is_followed_again(
    stand: Stand,
) -> None:
    placement = stand.operator.placement("triage", TRIAGE, Pinning.SOFT)
    await stand.operator.want([])
    with stand.sidecar("restart") as port:
        state = await warm(stand, placement)
        epoch = stand.operator.states[-1].engine.epoch
        stand.engine.kill()
        await until_metric(port, "kv_events_connected", 0)
        await until_metric(port, "kv_events_index_blocks", 0)
        stand.engine.start()
        await stand.until_engine(lambda s: s.engine.healthy and s.engine.epoch != epoch)
        await stand.operator.warm(placement)
        await until_metric(port, "kv_events_index_blocks", state.tokens // BLOCK)
        await stand.press()
        await until_evicted(port, 0)
        await until_resident(port, state.tokens, 60)


@dataclass
class Heard:
    """A sink that keeps what it hears."""

    stored: list[bytes] = field(default_factory=list)
    missed_times: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, batch: Batch) -> None:
        self.stored += [event.tokens for event in batch.events if isinstance(event, Stored)]

    def missed(self) -> None:
        self.missed_times += 1

    def flush(self) -> None:
        self.changed.set()


@contextlib.asynccontextmanager
async def losing(stand: Stand, lost: range) -> AsyncIterator[str]:
    """Relay the engine's events without some of them; yields the endpoint of the relay."""
    endpoint = f"ipc://{stand.folder}/relay"
    context = zmq.asyncio.Context()
    front, back = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    back.subscribe("")
    back.connect(stand.events)
    front.bind(endpoint)

    async def relay() -> None:
        await front.recv()  # the subscription
        passed = 0
        while True:
            frames = await back.recv_multipart()
            if passed not in lost:
                await front.send_multipart(frames)
            passed += 1

    task = asyncio.create_task(relay())
    try:
        yield endpoint
    finally:
        task.cancel()
        await asyncio.wait({task})
        context.destroy(linger=0)


@pytest.mark.asyncio(loop_scope="module")
async def test_lost_batches_come_from_the_engines_replay(stand: Stand) -> None:
    registry, heard = CollectorRegistry(), Heard()
    await until_healthy(stand.engine)
    await stand.reset()
    async with losing(stand, range(1, 4)) as endpoint:
        endpoints = Endpoints(endpoint, stand.replay, "kv")
        reader = asyncio.create_task(Subscriber(endpoints, heard, Counters(registry)).run())
        try:
            async with asyncio.timeout(120):
                number = 0
                while registry.get_sample_value(f"{PREFIX}_replays_total") != 1:
                    heard.changed.clear()
                    await stand.complete([1000 + number] * BLOCK + [5])
                    number += 1
                    await asyncio.sleep(0.2)
                while len(heard.stored) < number - 1:
                    await heard.changed.wait()
                    heard.changed.clear()
        finally:
            reader.cancel()
            await asyncio.wait({reader})
    labels = {"outcome": "replayed"}
    assert registry.get_sample_value(f"{PREFIX}_gaps_total", labels) == 1
    assert heard.missed_times == 0
    first = [int.from_bytes(tokens[:4], "little") for tokens in heard.stored]
    assert first == list(range(first[0], 1000 + number)), "in order, without holes"


def _is_warm(state: SidecarState, placement: Placement) -> bool:
    found = next((item for item in state.placements if item.id == placement.id), None)
    return found is not None and found.phase == "Warm" and found.resident_tokens == found.tokens
