"""Pins that can't be had, are lost or are soft: what the sidecar does and says."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, Phase
from promptprefix_sidecar import plugin_status
from promptprefix_sidecar.snapshot import NEVER, PluginStatus

from .fake_control import FakeControl
from .fake_engine import FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until


async def test_without_the_plugin_the_pin_is_soft_and_says_why(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        state = await control.state(placement.id)
        assert state.pinned is Pinning.SOFT
        assert state.reason == "SoftPinned"
        assert "--scheduler-cls" in state.message
        assert state.pinned_tokens == 0
        assert state.resident_tokens == state.tokens
        touches = len(engine.sent("/v1/completions"))
        await until(sidecar, lambda _: len(engine.sent("/v1/completions")) > touches + 3)
        assert control.states[-1].engine.capabilities == ()
        assert control.states[-1].engine.epoch == "1001"


async def test_an_aborted_command_does_not_mean_that_the_plugin_is_missing(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.paused = True
        await until(sidecar, lambda s: s.plugin.ask_at != NEVER or s.plugin.report is None)
        engine.paused = False
        assert sidecar.board.snapshot.plugin.status is PluginStatus.WORKING
        assert sidecar.board.snapshot.records[placement.id].pinned is Pinning.HARD


async def test_a_refusal_in_unknown_words_is_not_asked_for_again_at_once(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    engine.refusal = "Whatever"
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.plugin.ask_at != NEVER)
        assert engine.commands() == ["report"]
        assert sidecar.board.snapshot.plugin.status is PluginStatus.UNKNOWN


async def test_a_plugin_that_never_reports_leaves_soft_pins_and_the_reason(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_status, "REPORT_PATIENCE_S", 0.0)
    monkeypatch.setattr(plugin_status, "PLUGIN_RETRY_S", 0.0)
    engine.refusal = "Whatever"
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
    assert (state.pinned, state.reason) == (Pinning.SOFT, "SoftPinned")
    assert state.message.startswith("the pin plugin gives no report (Whatever: not now): see ")


async def test_a_soft_pin_that_was_evicted_is_warmed_again(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT, pinning=Pinning.SOFT)
    await control.want([placement])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        await control.state(placement.id)
        engine.pool.cached.clear()
        await until(sidecar, lambda s: s.records[placement.id].soft_evictions == 1)
        await until(sidecar, lambda s: s.records[placement.id].phase is Phase.WARM)
        page = sidecar.metrics.page().decode()
    assert 'premature_evictions_total{name="triage",namespace="ml",pinning="Soft"} 1.0' in page


@pytest.mark.parametrize("details", [True, False])
async def test_an_engine_that_keeps_nothing_is_never_called_warm(
    control: FakeControl, tmp_path: Path, details: bool
) -> None:
    engine = FakeEngine(plugin=False, usage_details=details)
    engine.pool.cached = Forgetful()
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.FAILED)
    assert state.reason == "WarmFailed"
    assert "tokens cached right after computing them" in state.message


class Forgetful(dict[bytes, object]):
    """A cache that keeps nothing."""

    def setdefault(self, key: bytes, default: object = None) -> object:
        return default


async def test_the_engines_counters_prove_residency_where_usage_details_are_off(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False, usage_details=False)
    placement = control.placement("triage", TEXT, pinning=Pinning.NONE)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
    assert state.pinned is Pinning.NONE
    assert state.resident_tokens == state.tokens


async def test_over_budget_the_pin_is_soft_until_there_is_room(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(budget=16)
    first = control.placement("first", TEXT, priority=1)
    second = control.placement("second", OTHER)
    await control.want([first, second])
    async with running(engine, control, tmp_path) as sidecar:
        assert (await control.state(first.id)).pinned is Pinning.HARD
        state = await control.state(second.id)
        assert state.pinned is Pinning.SOFT
        assert state.reason == "BudgetExceeded"
        assert "the budget is 16" in state.message
        reports = engine.commands().count("report")
        await until(sidecar, lambda _: engine.commands().count("report") > reports + 5)
        assert engine.commands().count("pin") == 2
        assert b'pin_failures_total{reason="BudgetExceeded"} 1.0' in sidecar.metrics.page()


async def test_pins_that_a_reset_took_are_pinned_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.table.release_all(0.0)
        engine.pool.cached.clear()
        await until(sidecar, lambda s: s.records[placement.id].hard_evictions == 1)
        await until(sidecar, lambda s: s.records[placement.id].pinned is Pinning.HARD)
    assert len(engine.pins()) == 1


async def test_a_pin_given_up_under_pressure_is_not_taken_back_at_once(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.table.release_lowest(0.0)
        state = await control.state(placement.id, where=lambda s: s.pinned is Pinning.SOFT)
        assert sidecar.board.snapshot.records[placement.id].hard_evictions == 1
    assert state.reason == "PressureValve"
    assert engine.commands().count("pin") == 1


async def test_a_key_that_does_not_fit_gives_soft_pins(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    other_key = tmp_path / "other"
    other_key.write_bytes(b"x" * 32)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, key_file=other_key) as sidecar:
        state = await control.state(placement.id)
        assert sidecar.board.snapshot.plugin.status is PluginStatus.REFUSING
    assert state.pinned is Pinning.SOFT
    assert "BadMac" in state.message


async def test_a_restarted_engine_is_asked_for_the_plugin_again(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        assert (await control.state(placement.id)).pinned is Pinning.SOFT
        engine.restart(plugin=True)
        await control.state(placement.id, where=lambda s: s.pinned is Pinning.HARD)
        assert control.states[-1].engine.capabilities == (HARD_PINS,)
        engine.restart(plugin=False)
        state = await control.state(placement.id, where=lambda s: s.pinned is Pinning.SOFT)
        assert state.reason == "SoftPinned"
        assert control.states[-1].engine.capabilities == ()
