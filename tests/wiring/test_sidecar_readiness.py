"""A pod serves only when its prefixes are warm, or after a bounded time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from promptprefix.wire import Phase, SidecarState
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError
from promptprefix_sidecar.sidecar import Sidecar

from .fake_control import FakeControl
from .fake_engine import FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until

AWAY = ControlError("unreachable", "away")


@dataclass
class Leaping:
    """A clock that can be put forward."""

    ahead_s: float = 0.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: time.monotonic() + self.ahead_s)


def gates(control: FakeControl) -> list[tuple[bool, bool]]:
    """Return what was reported of the gate, without repetitions."""
    told: list[tuple[bool, bool]] = []
    for state in control.states:
        if told[-1:] != [(state.ready, state.failed_open)]:
            told.append((state.ready, state.failed_open))
    return told


@contextlib.contextmanager
def never_closed(sidecar: Sidecar) -> Iterator[None]:
    """Fail if the gate closes meanwhile."""
    closed: list[str] = []
    apply = sidecar.board.apply

    def watched(edit: object) -> None:
        apply(edit)  # type: ignore[arg-type]
        if not sidecar.board.snapshot.gate.open:
            closed.append(str(sidecar.board.snapshot))

    sidecar.board.apply = watched  # type: ignore[method-assign]
    yield
    sidecar.board.apply = apply  # type: ignore[method-assign]
    assert not closed


async def test_a_new_pod_is_ready_once_its_prefixes_are_warm(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    engine.gate.clear()
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: placement.id in s.records)
        assert sidecar.gate.why_closed().startswith("waiting for ml/triage")
        engine.gate.set()
        ready = await control.reported(lambda s: s.ready)
        assert [p.phase for p in ready.placements] == [Phase.WARM]
        assert b"promptprefix_sidecar_ready 1.0" in sidecar.metrics.page()
    assert gates(control) == [(False, False), (True, False)]


async def test_it_opens_after_the_bounded_time_and_says_so(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    engine.gate.clear()
    async with running(engine, control, tmp_path, ready_timeout_s=0.2) as sidecar:
        # No probe asks: the gate looks at the clock itself.
        opened = await control.reported(lambda s: s.ready)
        assert opened.failed_open
        assert [p.phase for p in opened.placements] != [Phase.WARM]
        assert b"promptprefix_sidecar_failed_open 1.0" in sidecar.metrics.page()
        engine.gate.set()
        with never_closed(sidecar):
            await control.state(placement.id)
        assert control.states[-1].failed_open
    assert gates(control) == [(False, False), (True, True)]


async def test_without_an_operator_a_new_pod_opens_after_the_bounded_time(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    await control.fail(AWAY)
    async with running(engine, control, tmp_path, ready_timeout_s=0.1) as sidecar:
        await until(sidecar, lambda s: s.engine.healthy)
        assert sidecar.gate.why_closed() == "the operator has not answered yet"
        await until(sidecar, lambda s: s.gate.open and s.gate.failed_open)


async def test_where_nothing_is_wanted_the_pod_is_ready_after_the_time_to_settle(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    leaping = Leaping()
    async with running(
        engine, control, tmp_path, leaping.clock(), ready_settle_s=500.0, ready_timeout_s=9e9
    ) as sidecar:
        await until(sidecar, lambda s: s.desired_known and s.engine.healthy)
        # The second question comes after the answer to the first.
        await control.reported(lambda _: sum(s.engine.healthy for s in control.states) == 2)
        leaping.ahead_s += 499.0
        assert sidecar.gate.why_closed() == "waiting for placements"
        leaping.ahead_s += 1.0
        assert sidecar.gate.why_closed() == ""
        assert not sidecar.board.snapshot.gate.failed_open


async def test_an_edit_never_takes_the_pod_out_of_service(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    old, new = control.placement("triage", TEXT), control.placement("triage", OTHER)
    await control.want([old])
    async with running(engine, control, tmp_path) as sidecar:
        await control.reported(lambda s: s.ready)
        with never_closed(sidecar):
            engine.gate.clear()
            await control.want([new, old])
            await until(sidecar, lambda s: new.id in s.records)
            engine.gate.set()
            await control.state(new.id)
            await control.want([new])
            await control.gone(old.id)
            await control.want([])
            await control.gone(new.id)
    assert gates(control) == [(False, False), (True, False)]


async def test_an_engine_that_restarts_in_place_is_out_of_service_until_warm_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.reported(lambda s: s.ready)
        engine.gate.clear()
        engine.restart()  # so fast that no probe saw it away
        await control.reported(lambda s: not s.ready)
        await until(sidecar, lambda s: s.boot == "1002")
        assert "waiting for ml/triage" in sidecar.gate.why_closed()
        engine.gate.set()
        back = await control.reported(lambda s: s.ready)
    assert [p.phase for p in back.placements] == [Phase.WARM]
    assert back.engine.epoch == "epoch-2"
    assert gates(control) == [(False, False), (True, False), (False, False), (True, False)]


async def test_a_slow_start_of_the_engine_is_not_counted(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    """The sidecar runs from the start, reports and waits; loading a model may take an hour."""
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    engine.up = False
    leaping = Leaping()
    async with running(engine, control, tmp_path, leaping.clock()) as sidecar:
        await control.reported(lambda s: not s.engine.healthy)
        leaping.ahead_s += 3600.0
        assert sidecar.gate.why_closed() == "the engine is not healthy"
        engine.up = True
        state: SidecarState = await control.reported(lambda s: s.ready)
        assert not state.failed_open
        assert [p.phase for p in state.placements] == [Phase.WARM]


async def test_a_restarted_sidecar_lets_a_serving_engine_serve_on(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        await control.reported(lambda s: s.ready)
    await control.fail(AWAY)
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.engine.healthy)
        assert sidecar.gate.why_closed() == ""
        assert not sidecar.board.snapshot.desired_known
        assert len(engine.pins()) == 1


async def test_a_restarted_sidecar_beside_another_engine_waits_for_its_prefixes(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        await control.reported(lambda s: s.ready)
    engine.restart()
    engine.gate.clear()
    control.states.clear()
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.engine.healthy)
        assert sidecar.gate.why_closed() != ""
        engine.gate.set()
        ready = await control.reported(lambda s: s.ready)
    assert [p.phase for p in ready.placements] == [Phase.WARM]


async def test_a_sidecar_that_died_before_the_pod_was_ready_waits_as_at_first(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    first, second = control.placement("first", TEXT, priority=1), control.placement("next", OTHER)
    await control.want([first, second])
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.records[first.id].phase is Phase.WARM if s.records else 0)
        engine.gate.clear()
        assert sidecar.gate.why_closed() != ""
    control.states.clear()
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.engine.healthy)
        assert sidecar.gate.why_closed() != ""
        engine.gate.set()
        ready = await control.reported(lambda s: s.ready)
    assert {p.phase for p in ready.placements} == {Phase.WARM}
