"""The sidecar beside a simulated engine that publishes its KV events by real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from e2e.simulator.options import SimulatorOptions
from e2e.simulator.publisher import publishing
from e2e.simulator.simulated_engine import SimulatedEngine
from e2e.simulator.transport import simulator_client
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.sidecar import Sidecar
from promptprefix_sidecar.snapshot import Record

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .kv_publisher import publisher_in
from .sidecar_harness import OTHER, TEXT, running, until

BLOCKS = 48
NOISE_TOKENS = 32 * 40
NEVER_S = 3600.0
"""Interval of touches: what happens in a test is the events' doing."""


@dataclass(frozen=True)
class Simulated:
    """What the harness asks of an engine."""

    engine: SimulatedEngine

    @property
    def key(self) -> bytes:
        return self.engine.options.key

    def client(self) -> httpx.AsyncClient:
        return simulator_client(self.engine)

    async def complete(self, start: int, tokens: int = NOISE_TOKENS) -> None:
        """Send a user's request, by default one that fills most of the cache."""
        prompt = [300 + (start * 1009 + place * 31) % 7000 for place in range(tokens)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
        async with self.client() as client:
            (await client.post("/v1/completions", json=body)).raise_for_status()

    async def reset(self) -> None:
        """Empty the cache. Engines tell of it with their next step."""
        async with self.client() as client:
            (await client.post("/reset_prefix_cache")).raise_for_status()
        await self.complete(9, 1)


@contextlib.asynccontextmanager
async def beside(
    control: FakeControl, folder: Path, *, plugin: bool = False, **changes: object
) -> AsyncIterator[tuple[Simulated, Sidecar]]:
    options = SimulatorOptions(blocks=BLOCKS, plugin=plugin, key=b"k" * 32, events=True)
    simulated = Simulated(SimulatedEngine(options))
    events, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    settings = {
        "kv_events_endpoint": events,
        "kv_events_replay_endpoint": replay,
        "touch_interval_s": NEVER_S,
        **changes,
    }
    async with (
        publishing(simulated.engine, events, replay),
        running(simulated, control, folder, **settings) as sidecar,  # type: ignore[arg-type]
    ):
        await listening(sidecar)
        yield simulated, sidecar
    simulated.engine.crash()


async def listening(sidecar: Sidecar) -> None:
    """Wait until the engine's event socket has answered: what it sends before is lost."""
    await until_counted(sidecar, "connected", 1)


async def until_counted(sidecar: Sidecar, name: str, value: float) -> None:
    async with asyncio.timeout(10):
        while _metric(sidecar, name) != value:  # noqa: ASYNC110 - a metric has no event
            await asyncio.sleep(0.005)


def _metric(sidecar: Sidecar, name: str, **labels: str) -> float:
    found = sidecar.metrics.registry.get_sample_value(
        f"promptprefix_sidecar_kv_events_{name}", labels
    )
    return found or 0.0


def record(sidecar: Sidecar) -> Record:
    return next(iter(sidecar.board.snapshot.records.values()))


async def until_record(sidecar: Sidecar, condition: Callable[[Record], object]) -> Record:
    await until(sidecar, lambda s: s.records and condition(next(iter(s.records.values()))))
    return record(sidecar)


def proved(found: Record) -> bool:
    return found.phase is Phase.WARM and not found.unproved


async def test_a_soft_prefix_that_noise_evicts_is_counted_and_warm_again_at_once(
    control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("a", TEXT, pinning=Pinning.SOFT)
    async with beside(control, tmp_path) as (simulated, sidecar):
        await control.want([placement])
        warm = await until_record(sidecar, proved)
        assert warm.resident_tokens == warm.tokens > 0
        assert _metric(sidecar, "index_blocks") == warm.tokens // 32
        for number in range(2):
            await simulated.complete(number)
        lost = await until_record(sidecar, lambda r: r.soft_evictions)
        assert lost.soft_evictions == 1
        await until_record(sidecar, proved)
        assert record(sidecar).resident_tokens == warm.tokens


async def test_a_reset_of_the_cache_is_seen_at_once(control: FakeControl, tmp_path: Path) -> None:
    placement = control.placement("a", TEXT, pinning=Pinning.SOFT)
    async with beside(control, tmp_path) as (simulated, sidecar):
        await control.want([placement])
        await until_record(sidecar, proved)
        await simulated.reset()
        await until_record(sidecar, lambda r: r.soft_evictions == 1)
        await until_record(sidecar, proved)


@pytest.mark.parametrize("plugin", [False, True])
async def test_what_was_cached_before_is_proved_by_a_touch_that_asks_for_a_report(
    control: FakeControl, tmp_path: Path, plugin: bool
) -> None:
    """A sidecar that restarts missed the events: a hit tells nothing, so it must ask."""
    placement = control.placement("a", TEXT, pinning=Pinning.SOFT)
    await control.want([placement])
    quick = {"plugin": plugin, "touch_interval_s": 0.05}
    async with beside(control, tmp_path, **quick) as (simulated, sidecar):
        await until_record(sidecar, proved)
        again = tmp_path / "again"
        again.mkdir()
        second = {
            "kv_events_endpoint": f"ipc://{tmp_path}/events",
            "touch_interval_s": 0.05,
        }
        async with running(simulated, control, again, **second) as restarted:  # type: ignore[arg-type]
            await until_record(restarted, lambda r: r.phase is Phase.WARM)
            found = await until_record(restarted, proved)
            assert found.soft_evictions == 0
            assert _metric(restarted, "index_blocks") == found.tokens // 32


async def test_an_engine_that_restarts_is_followed_again(
    control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("a", TEXT, pinning=Pinning.SOFT)
    async with beside(control, tmp_path) as (simulated, sidecar):
        await control.want([placement])
        await until_record(sidecar, proved)
        boot = sidecar.board.snapshot.boot
        await simulated.complete(1)
        simulated.engine.restart()
        await until(sidecar, lambda s: s.boot != boot)
        await until_record(sidecar, proved)
        assert _metric(sidecar, "resets_total") == 1
        for number in range(2):
            await simulated.complete(number)
        await until_record(sidecar, lambda r: r.soft_evictions == 1)


async def test_equal_texts_with_other_salts_are_told_apart(
    control: FakeControl, tmp_path: Path
) -> None:
    salted = control.placement("a", TEXT, pinning=Pinning.SOFT, salt="tenant-a")
    other = control.placement("b", TEXT, pinning=Pinning.NONE, salt="tenant-b")
    plain = control.placement("c", OTHER, pinning=Pinning.NONE)
    async with beside(control, tmp_path) as (_, sidecar):
        await control.want([salted])
        first = await until_record(sidecar, proved)
        blocks = first.tokens // 32
        assert _metric(sidecar, "index_blocks") == blocks
        other = other.model_copy(update={"id": "b"})
        control.salts["b"] = "tenant-b"
        await control.want([salted, other, plain])
        await until(
            sidecar,
            lambda s: sum(r.phase is Phase.WARM for r in s.records.values()) == 3,
        )
        found = sidecar.board.snapshot.records
        assert found["b"].tokens == first.tokens
        more = sum(found[id_].tokens // 32 for id_ in ("b", plain.id))
        # Without a pin a prefix is warm by the engine's answers, which its events may come after.
        await until_counted(sidecar, "index_blocks", blocks + more)


async def test_a_hard_pin_that_loses_a_block_is_asked_about_at_once(
    control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("a", TEXT)
    settings = {"plugin": True, "report_interval_s": NEVER_S, "lease_s": 86_400}
    async with beside(control, tmp_path, **settings) as (simulated, sidecar):
        await control.want([placement])
        pinned = await until_record(sidecar, lambda r: r.pinned is Pinning.HARD)
        assert pinned.resident_tokens == pinned.tokens
        await simulated.reset()
        await until_record(sidecar, lambda r: r.hard_evictions)
        await until_record(sidecar, lambda r: r.pinned is Pinning.HARD and r.phase is Phase.WARM)


async def test_the_tiers_own_event_proves_that_a_prefix_is_offloaded(
    control: FakeControl, tmp_path: Path
) -> None:
    """Asked for the prefix, the tier would give nothing: only its event says that it has a copy."""
    engine = FakeEngine(tier="HostConnector", tier_forgets=True)
    placement = control.placement("a", TEXT)
    await control.want([placement])
    async with publisher_in(tmp_path).serving() as publisher:
        settings = {"kv_events_endpoint": publisher.events}
        async with running(engine, control, tmp_path, **settings) as sidecar:
            await publisher.subscribed()
            warm = await until_record(sidecar, lambda r: r.phase is Phase.WARM)
            assert warm.head is not None
            ids = warm.head.prompt_ids[:-1]
            hashes = [bytes([number]) * 32 for number in range(len(ids) // BLOCK_SIZE)]
            stored = ["BlockStored", hashes, None, ids, BLOCK_SIZE, None, "GPU", None]
            copies = [["BlockStored", [each], None, [], 0, None, "CPU", None] for each in hashes]
            await publisher.publish(stored, *copies)
            await until_record(sidecar, lambda r: r.copied_tokens == r.tokens)
            release = placement.model_copy(update={"release": OnIdle.OFFLOAD})
            await control.want([release])
            state = await control.state(placement.id, Phase.RELEASED)
            assert (state.released, state.reason) == (OnIdle.OFFLOAD, "")
            assert engine.by_source["host"] == 0


async def test_without_events_nothing_is_known_and_nothing_is_asked(
    control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("a", TEXT, pinning=Pinning.SOFT)
    async with beside(control, tmp_path) as (simulated, _):
        quiet = tmp_path / "quiet"
        quiet.mkdir()
        async with running(simulated, control, quiet) as sidecar:  # type: ignore[arg-type]
            await control.want([placement])
            await until_record(sidecar, lambda r: r.phase is Phase.WARM)
            assert not record(sidecar).unproved
            assert b"kv_events" not in sidecar.metrics.page()


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()
