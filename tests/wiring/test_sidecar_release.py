"""Prefixes that are not to be held just now: what becomes of them, and how they come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.payload import Payload
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase, Placement, PlacementState

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until

PROMPT = f'<{TEXT.system}|""|U:'


def released(placement: Placement, how: OnIdle) -> Placement:
    return placement.model_copy(update={"release": how})


async def wanted(control: FakeControl, pinning: Pinning = Pinning.HARD) -> Placement:
    placement = control.placement("triage", TEXT, pinning=pinning)
    await control.want([placement])
    return placement


async def warm_then_released(
    control: FakeControl, placement: Placement, how: OnIdle
) -> tuple[PlacementState, PlacementState]:
    """Release a placement once it is warm; return its states before and after."""
    warm = await control.state(placement.id)
    await control.want([released(placement, how)])
    return warm, await control.state(placement.id, Phase.RELEASED)


def cached(engine: FakeEngine) -> int:
    """Tokens of the declared text that a request would find now."""
    return sum(BLOCK_SIZE for digest in engine.hashes_of(PROMPT) if digest in engine.pool.cached)


async def test_keep_unpins_and_leaves_the_blocks_to_the_engine(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path) as sidecar:
        warm, state = await warm_then_released(control, placement, OnIdle.KEEP)
        assert (state.released, state.pinned, state.reason) == (OnIdle.KEEP, Pinning.NONE, "")
        assert (state.token_digest, state.tokens) == (warm.token_digest, warm.tokens)
        assert not engine.pins()
        assert cached(engine) == warm.tokens
        assert sidecar.gate.why_closed() == ""
        await control.state(
            placement.id, Phase.RELEASED, where=lambda s: s.resident_tokens == warm.tokens
        )


async def test_evict_drops_the_blocks_at_once_and_being_held_warms_them_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path) as sidecar:
        warm, state = await warm_then_released(control, placement, OnIdle.EVICT)
        assert (state.released, state.reason) == (OnIdle.EVICT, "")
        assert cached(engine) == 0
        assert sidecar.board.snapshot.records[placement.id].hard_evictions == 0
        await control.want([placement])
        again = await control.state(placement.id)
        assert (again.pinned, again.released) == (Pinning.HARD, None)
        assert cached(engine) == warm.tokens
        assert engine.commands().count("evict") == 1


@pytest.mark.parametrize("how", [OnIdle.KEEP, OnIdle.EVICT])
async def test_a_match_of_a_released_prefix_is_told_at_once_and_only_a_users(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, how: OnIdle
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path) as sidecar:
        _, state = await warm_then_released(control, placement, how)
        assert state.last_hit is None
        reports = engine.commands().count("report")
        await until(sidecar, lambda _: engine.commands().count("report") > reports + 3)
        assert sidecar.board.snapshot.records[placement.id].last_hit is None
        engine.ask(PROMPT)
        state = await control.state(
            placement.id, Phase.RELEASED, where=lambda s: s.last_hit is not None
        )
        evictions = engine.commands().count("evict")
        reports = engine.commands().count("report")
        await until(sidecar, lambda _: engine.commands().count("report") > reports + 3)
        # What the user's request brought back is the user's.
        assert engine.commands().count("evict") == evictions


async def test_a_soft_prefix_is_pinned_to_be_evicted(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control, Pinning.SOFT)
    async with running(engine, control, tmp_path):
        assert (await control.state(placement.id)).pinned is Pinning.SOFT
        await control.want([released(placement, OnIdle.EVICT)])
        state = await control.state(placement.id, Phase.RELEASED)
    assert state.released is OnIdle.EVICT
    assert cached(engine) == 0
    assert [op for op in engine.commands() if op in ("pin", "evict")] == ["pin", "evict"]


async def test_a_soft_prefix_without_room_for_a_pin_stays_and_says_so(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(budget=1)
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        assert (await control.state(placement.id)).pinned is Pinning.SOFT
        await control.want([released(placement, OnIdle.EVICT)])
        state = await control.state(placement.id, Phase.RELEASED)
    assert (state.released, state.reason) == (OnIdle.KEEP, "NotEvictable")
    assert "the budget is 1" in state.message


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (FakeEngine(plugin=False), "--scheduler-cls"),
        (FakeEngine(older=True), "too old to evict"),
    ],
)
async def test_without_a_plugin_that_evicts_it_stays_and_says_so(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, words: str
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        warm, state = await warm_then_released(control, placement, OnIdle.EVICT)
        assert (state.released, state.reason) == (OnIdle.KEEP, "NotEvictable")
        assert words in state.message
        assert not engine.pins()
        assert cached(engine) == warm.tokens
        assert "evict" not in engine.commands()
        assert "warm" not in engine.commands()


async def test_blocks_that_another_pin_holds_outlive_an_eviction(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    twin = control.placement("twin", TEXT)
    await control.want([placement, twin])
    async with running(engine, control, tmp_path):
        warm = await control.state(placement.id)
        await control.state(twin.id)
        await control.want([released(placement, OnIdle.EVICT), twin])
        state = await control.state(placement.id, Phase.RELEASED)
        assert state.released is OnIdle.EVICT
        assert (await control.state(twin.id)).pinned is Pinning.HARD
        assert cached(engine) == warm.tokens


async def test_without_a_tier_nothing_is_offloaded(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        warm, state = await warm_then_released(control, placement, OnIdle.OFFLOAD)
        assert (state.released, state.reason) == (OnIdle.KEEP, "NoOffloadTier")
        assert "KV connector" in state.message
        assert not engine.pins()
        assert cached(engine) == warm.tokens


@pytest.mark.parametrize("pinning", [Pinning.HARD, Pinning.SOFT])
async def test_offloaded_is_what_the_tier_gave_back(
    control: FakeControl, tmp_path: Path, pinning: Pinning
) -> None:
    engine = FakeEngine(tier="HostConnector")
    placement = await wanted(control, pinning)
    async with running(engine, control, tmp_path) as sidecar:
        warm = await control.state(placement.id)
        assert control.states[-1].engine.offload_tier == "HostConnector"
        await control.want([released(placement, OnIdle.OFFLOAD)])
        state = await control.state(placement.id, Phase.RELEASED)
        assert (state.released, state.reason) == (OnIdle.OFFLOAD, "")
        assert cached(engine) == 0
        assert engine.by_source["host"] == warm.tokens
        await control.want([placement])
        again = await control.state(placement.id)
        assert f"{warm.tokens} from host" in again.message
        page = sidecar.metrics.page().decode()
    assert f'warm_up_tokens_total{{source="host"}} {float(warm.tokens)}' in page


async def test_a_tier_that_lost_its_copy_leaves_the_prefix_where_it_is(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(tier="HostConnector", tier_forgets=True)
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        _, state = await warm_then_released(control, placement, OnIdle.OFFLOAD)
    assert (state.released, state.reason) == (OnIdle.KEEP, "NoOffloadTier")
    assert "HostConnector" in state.message


async def test_a_restarted_sidecar_evicts_what_it_finds(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        await control.state(placement.id)
    await control.want([released(placement, OnIdle.EVICT)])
    control.states.clear()
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.RELEASED)
    assert state.released is OnIdle.EVICT
    assert cached(engine) == 0


async def test_a_restarted_engine_holds_nothing_of_what_was_released(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    other = control.placement("other", OTHER)
    await control.want([placement, other])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.want([released(placement, OnIdle.EVICT), other])
        await control.state(placement.id, Phase.RELEASED)
        engine.restart()
        await until(sidecar, lambda s: s.epoch == "epoch-2")
        await control.state(other.id)
        state = await control.state(placement.id, Phase.RELEASED)
        assert (state.released, state.resident_tokens) == (OnIdle.EVICT, 0)


async def test_a_warm_up_stops_when_its_prefix_is_released(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    engine.gate.clear()
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        engine.gate.set()
        await until(sidecar, lambda s: s.plugin.report is not None)
        engine.gate.clear()
        await until(sidecar, lambda _: "pin" in engine.commands())
        await control.want([released(placement, OnIdle.KEEP)])
        await until(sidecar, lambda s: s.records[placement.id].placement.release is not None)
        engine.gate.set()
        await control.state(placement.id, Phase.RELEASED)
        assert not engine.pins()


async def test_a_released_prefix_holds_no_pod_back(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([released(placement, OnIdle.KEEP)])
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda _: sidecar.gate.why_closed() == "")
        await control.state(placement.id, Phase.RELEASED)
        assert cached(engine) == 0


async def test_the_tokens_of_what_was_never_held_are_asked_for_and_nothing_else(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([released(placement, OnIdle.KEEP)])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.RELEASED, where=lambda s: s.tokens > 0)
        assert (state.released, state.reason, state.counted) == (OnIdle.KEEP, "", False)
        assert (state.resident_tokens, state.pinned_tokens) == (0, 0)
        assert state.token_digest
        assert state.heads
        assert cached(engine) == 0
        assert set(engine.commands()) == {"report"}
        tokens = state.tokens
        await control.want([placement])
        assert (await control.state(placement.id)).tokens == tokens


async def test_after_a_restart_nobody_counts_matches_of_what_is_released(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = await wanted(control)
    async with running(engine, control, tmp_path):
        assert (await control.state(placement.id)).counted
        await control.want([released(placement, OnIdle.KEEP)])
        warm = await control.state(placement.id, Phase.RELEASED)
        assert warm.counted
        engine.restart()
        state = await control.state(
            placement.id, Phase.RELEASED, where=lambda s: not s.counted and s.tokens > 0
        )
        assert (state.tokens, state.heads) == (warm.tokens, warm.heads)
        assert cached(engine) == 0
        await control.want([placement])
        assert (await control.state(placement.id)).counted
        await control.want([released(placement, OnIdle.KEEP)])
        assert (await control.state(placement.id, Phase.RELEASED)).counted


async def test_a_text_that_can_not_be_measured_stays_released(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", Payload(systemInstructions="Hi"))
    await control.want([released(placement, OnIdle.KEEP)])
    async with running(engine, control, tmp_path) as sidecar:
        await until(
            sidecar, lambda s: placement.id in s.records and s.records[placement.id].failures
        )
        state = await control.state(placement.id, Phase.RELEASED)
        assert (state.tokens, state.released) == (0, OnIdle.KEEP)
        assert sidecar.board.snapshot.records[placement.id].failures == 1
