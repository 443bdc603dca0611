"""Warm-ups in chunks, beside users, and around sleep and cache resets."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.snapshot import PluginStatus

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .sidecar_harness import OTHER, TEXT, eventually, running, until

CHUNK = 4 * BLOCK_SIZE


def new_tokens(engine: FakeEngine) -> list[int]:
    """Tokens that each of the long requests computed."""
    return [computed for computed in engine.computed if computed > 1]


@pytest.mark.parametrize("pinning", [Pinning.HARD, Pinning.SOFT])
@pytest.mark.parametrize("engine", [FakeEngine(), FakeEngine(older=True), FakeEngine(plugin=False)])
async def test_a_long_prefix_comes_in_chunks(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, pinning: Pinning
) -> None:
    engine.restart()
    placement = control.placement("triage", TEXT, pinning=pinning)
    await control.want([placement])
    engine.computed.clear()
    async with running(engine, control, tmp_path, warm_chunk_tokens=CHUNK + 3) as sidecar:
        state = await control.state(placement.id)
        assert state.tokens > 2 * CHUNK
        assert max(engine.computed) <= CHUNK + 1
        assert sum(new_tokens(engine)) >= state.tokens
        page = sidecar.metrics.page().decode()
    assert f'warm_up_tokens_total{{source="computed"}} {float(state.tokens)}' in page


async def test_with_the_plugin_every_prefill_of_ours_is_known_as_such(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    hard = control.placement("hard", TEXT)
    soft = control.placement("soft", OTHER, pinning=Pinning.SOFT)
    await control.want([hard, soft])
    async with running(
        engine, control, tmp_path, warm_chunk_tokens=CHUNK, touch_interval_s=0.01
    ) as sidecar:
        await control.state(hard.id)
        await control.state(soft.id)
        warmed = engine.commands().count("warm")
        await until(sidecar, lambda _: engine.commands().count("warm") > warmed + 3)
    assert all("vllm_xargs" in body for body in engine.sent("/v1/completions"))
    assert "pin" in engine.commands()
    assert sidecar.board.snapshot.records[soft.id].last_hit is None


async def test_without_the_plugin_users_go_between_two_chunks(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT)
    async with running(engine, control, tmp_path, warm_chunk_tokens=CHUNK) as sidecar:
        await until(sidecar, lambda s: s.plugin.status is PluginStatus.ABSENT)
        engine.gate.clear()
        sent = len(engine.sent("/v1/completions"))
        await control.want([placement])
        await eventually(engine, lambda: len(engine.sent("/v1/completions")) > sent)
        engine.waiting = 3
        await until(sidecar, lambda s: s.engine.waiting)
        engine.gate.set()
        await eventually(engine, lambda: new_tokens(engine))
        looks = len(engine.sent("/health"))
        await eventually(engine, lambda: len(engine.sent("/health")) > looks + 5)
        assert len(new_tokens(engine)) == 1
        engine.waiting = 0
        await control.state(placement.id)


async def test_users_that_never_stop_waiting_hold_a_warm_up_for_a_bounded_time(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False, waiting=2)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(
        engine, control, tmp_path, warm_chunk_tokens=CHUNK, soft_wait_s=0.05
    ) as sidecar:
        await control.state(placement.id)
        assert sidecar.board.snapshot.engine.waiting == 2


async def test_a_warm_up_stops_between_two_chunks_when_it_is_no_longer_wanted(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    async with running(engine, control, tmp_path, warm_chunk_tokens=CHUNK) as sidecar:
        await until(sidecar, lambda s: s.plugin.status is PluginStatus.WORKING)
        engine.queue.clear()
        await control.want([placement])
        await until(sidecar, lambda _: "warm" in engine.commands())
        await control.want([])
        await control.gone(placement.id)
        engine.queue.set()
        looks = len(engine.sent("/health"))
        await eventually(engine, lambda: len(engine.sent("/health")) > looks + 5)
        assert engine.commands().count("warm") == 1
        assert "pin" not in engine.commands()


async def test_a_sleeping_engine_is_left_alone_and_warmed_when_it_wakes(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    none = control.placement("none", OTHER, pinning=Pinning.NONE)
    await control.want([placement, none])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.state(none.id)
        await eventually(engine, lambda: sidecar.gate.why_closed() == "")
        engine.sleep()
        state = await control.state(placement.id, Phase.PENDING)
        assert state.reason == "EngineAsleep"
        assert control.states[-1].engine.asleep
        assert sidecar.gate.why_closed() == "the engine is asleep"
        sent = len(engine.sent("/v1/completions"))
        looks = len(engine.sent("/health"))
        await eventually(engine, lambda: len(engine.sent("/health")) > looks + 5)
        assert len(engine.sent("/v1/completions")) == sent
        engine.awake.set()
        state = await control.state(placement.id)
        assert (state.pinned, state.reason) == (Pinning.HARD, "")
        await control.state(none.id)
        await control.reported(lambda s: s.ready and not s.engine.asleep)
    assert len(engine.pins()) == 1


async def test_a_pin_that_outlived_the_sleep_is_not_taken_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        await control.state(placement.id)
        engine.awake.clear()
        await control.state(placement.id, Phase.PENDING)
        engine.awake.set()
        state = await control.state(placement.id)
    assert state.pinned is Pinning.HARD
    assert engine.commands().count("pin") == 1


@pytest.mark.parametrize("pinning", [Pinning.HARD, Pinning.SOFT, Pinning.NONE])
async def test_what_a_reset_of_the_cache_took_is_warmed_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, pinning: Pinning
) -> None:
    placement = control.placement("triage", TEXT, pinning=pinning)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
        engine.reset_cache()
        assert not engine.pool.cached
        await eventually(engine, lambda: len(engine.pool.cached) >= state.tokens // BLOCK_SIZE)
        assert (await control.state(placement.id)).pinned is pinning


async def test_load_is_told_without_the_sidecars_own_requests(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    engine.running, engine.waiting = 3, 1
    placement = control.placement("triage", TEXT)
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: (s.engine.running, s.engine.waiting) == (3, 1))
        await until(sidecar, lambda s: s.plugin.report is not None)
        engine.gate.clear()
        await control.want([placement])
        await until(sidecar, lambda _: "pin" in engine.commands())
        await until(sidecar, lambda s: s.engine.running < 3)
        assert sidecar.board.snapshot.engine.waiting == 1
        engine.gate.set()
        await control.state(placement.id)
