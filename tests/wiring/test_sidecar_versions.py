"""Earlier texts that pods keep, and placements whose protection changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.snapshot import PluginStatus

from .fake_control import FakeControl
from .fake_engine import FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until


def retained(placement: Placement, pinning: Pinning = Pinning.HARD) -> Placement:
    return placement.model_copy(update={"retained": True, "pinning": pinning})


async def reported_again(engine: FakeEngine, sidecar: object) -> None:
    reports = engine.commands().count("report")
    await until(sidecar, lambda _: engine.commands().count("report") > reports + 2)  # type: ignore[arg-type]


async def test_an_earlier_text_is_renewed_and_never_warmed_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    old, new = control.placement("triage", TEXT), control.placement("triage", OTHER)
    await control.want([old])
    async with running(engine, control, tmp_path, digest_check_interval_s=0.02) as sidecar:
        await control.state(old.id)
        await control.want([new, retained(old)])
        await control.state(new.id)
        assert (await control.state(old.id)).pinned is Pinning.HARD
        await reported_again(engine, sidecar)
        assert len(engine.pins()) == 2
        engine.reset_cache()
        await control.state(old.id, Phase.PENDING)
        await control.state(new.id)
        await reported_again(engine, sidecar)
        state = await control.state(old.id, Phase.PENDING)
        assert state.pinned is Pinning.NONE
        assert len(engine.pins()) == 1
        assert sidecar.gate.why_closed() == ""


async def test_an_earlier_text_is_found_by_its_pin_after_a_restart(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    old, new = control.placement("triage", TEXT), control.placement("triage", OTHER)
    await control.want([old])
    async with running(engine, control, tmp_path):
        before = await control.state(old.id)
    await control.want([new, retained(old)])
    control.states.clear()
    control.asked.clear()
    async with running(engine, control, tmp_path) as sidecar:
        state = await control.state(old.id)
        assert (state.pinned, state.tokens) == (Pinning.HARD, before.tokens)
        assert state.token_digest == before.token_digest
        assert state.resident_tokens == state.pinned_tokens == before.tokens
        await control.state(new.id)
        assert control.asked == [OTHER.digest]
        # The text that was declared again is checked, and stays warm meanwhile.
        await control.want([old, retained(new)])
        await until(sidecar, lambda s: s.records[old.id].head is not None)
        assert sidecar.board.snapshot.records[old.id].phase is Phase.WARM
        assert len(engine.pins()) == 2
    assert engine.commands().count("pin") == 2


async def test_an_earlier_text_without_room_is_warm_until_the_engine_drops_it(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    old = control.placement("triage", TEXT)
    await control.want([old])
    async with running(engine, control, tmp_path):
        before = await control.state(old.id)
        await control.want([retained(old, Pinning.NONE)])
        state = await control.state(old.id, where=lambda s: s.pinned is Pinning.NONE)
        assert (state.tokens, state.pinned_tokens) == (before.tokens, 0)
    control.states.clear()
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(old.id, where=lambda s: s.pinned is Pinning.NONE)
        await until(sidecar, lambda _: not engine.pins())
        await reported_again(engine, sidecar)
        await control.state(old.id)
        for number in range(8):
            engine.prefill([1000 + number] * 16 * 8)
        await control.state(old.id, Phase.PENDING)
        await reported_again(engine, sidecar)
        await control.state(old.id, Phase.PENDING)
    assert engine.commands().count("pin") == 1


@pytest.mark.parametrize("first", [Pinning.NONE, Pinning.SOFT])
async def test_a_prefix_that_gets_room_is_pinned_without_being_computed_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, first: Pinning
) -> None:
    placement = control.placement("triage", TEXT, pinning=first)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        warm = await control.state(placement.id)
        assert warm.pinned is first
        computed = engine.queries - engine.hits
        phases = []
        await control.want([placement.model_copy(update={"pinning": Pinning.HARD})])
        await until(
            sidecar,
            lambda s: (
                phases.append(s.records[placement.id].phase)
                or s.records[placement.id].pinned is Pinning.HARD
            ),
        )
        assert set(phases) == {Phase.WARM}
        assert engine.queries - engine.hits - computed < warm.tokens / 2
        assert sidecar.board.snapshot.plugin.status is PluginStatus.WORKING
