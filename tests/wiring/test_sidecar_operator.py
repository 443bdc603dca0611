"""The sidecar and an operator that is away, changes or comes back."""

from __future__ import annotations

from pathlib import Path

from promptprefix.wire import Phase
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
