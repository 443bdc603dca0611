"""The sidecar and an operator that is away, changes or comes back."""

from __future__ import annotations

import time
from pathlib import Path

from promptprefix.wire import Phase
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError, ControlStatusError

from .fake_control import FakeControl
from .fake_engine import FakeEngine
from .sidecar_harness import TEXT, running, until


async def test_while_the_operator_is_away_pins_are_held_and_restarts_healed(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, lease_s=10) as sidecar:
        await control.state(placement.id)
        await control.fail(ControlError("unreachable", "away"))
        engine.restart()
        await until(
            sidecar,
            lambda s: s.epoch == "epoch-2" and s.records[placement.id].phase is Phase.WARM,
        )
        assert len(engine.pins()) == 1
        assert b'sync_errors_total{kind="unreachable"}' in sidecar.metrics.page()


async def test_an_old_leaders_answer_leads_to_a_new_connection(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.fail(ControlStatusError(409, "/v1/sidecar/sync"))
        await until(sidecar, lambda _: control.reconnects > 0)
        assert placement.id in sidecar.board.snapshot.records


async def test_pins_of_an_operator_that_is_gone_for_good_are_given_up_without_closing_the_gate(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    ahead_s = 0.0
    clock = Clock(monotonic=lambda: time.monotonic() + ahead_s)
    async with running(engine, control, tmp_path, clock, hold_s=3600.0) as sidecar:
        await control.reported(lambda s: s.ready)
        assert len(engine.pins()) == 1
        await control.fail(ControlError("unreachable", "away"))
        ahead_s += 3600.0
        await until(sidecar, lambda s: not s.records)
        assert not engine.pins()
        assert [release.reason for release in engine.table.releases] == ["Unpinned"]
        assert sidecar.gate.why_closed() == ""
        await control.fail(None)
        await until(sidecar, lambda s: placement.id in s.records)
        await control.state(placement.id)
        assert len(engine.pins()) == 1
