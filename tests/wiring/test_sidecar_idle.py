"""A sidecar under the real planner: idle times where only the engine's plugin tells of matches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from promptprefix.fleet import Pod, Prefix, Sidecar, Snapshot, Version
from promptprefix.placement import Planner
from promptprefix.resource import PromptPrefixSpec
from promptprefix.wire import Phase, SidecarState

from .fake_control import FakeControl
from .fake_engine import FakeEngine
from .sidecar_harness import TEXT, running

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
POD = Pod("p", "ml", "p", {"app": "v"}, "10.0.0.7", True, False)
ID = "u-1"


def idle(control: FakeControl) -> Prefix:
    """Return a prefix whose idle time is long over."""
    text = control.placement("triage", TEXT)
    spec = {
        "model": text.model,
        "pods": {"selector": {"matchLabels": {"app": "v"}}},
        "content": {"inline": {"systemInstructions": "x"}},
        "idleTTL": "10m",
    }
    version = Version(ID, text.model, text.fingerprint, text.content_digest, estimated_tokens=9)
    created = NOW - timedelta(hours=1)
    made = PromptPrefixSpec.model_validate(spec)
    return Prefix("u", "ml", "triage", 1, made, version, created=created)


@contextlib.asynccontextmanager
async def planning(control: FakeControl) -> AsyncIterator[None]:
    """Plan after every report, and write the status, as an operator does."""

    async def plan() -> None:
        planner, prefix = Planner(), idle(control)
        told: frozenset[str] = frozenset()
        resting: frozenset[str] = frozenset()
        seen: SidecarState | None = None
        while True:
            if control.states and control.states[-1] is not seen:
                seen = control.states[-1]
                sidecar = Sidecar(seen, told, resting)
                made = planner.plan(Snapshot((prefix,), (POD,), {"p": sidecar}), NOW)
                wanted = made.desired["p"]
                told = frozenset(each.id for each in wanted)
                resting = frozenset(each.id for each in wanted if each.release is not None)
                prefix = replace(prefix, conditions=tuple(made.statuses["u"].conditions))
                if wanted != control.placements:
                    await control.want(wanted)
            await asyncio.sleep(0)

    task = asyncio.create_task(plan())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def rests(engine: FakeEngine, control: FakeControl) -> None:
    """Wait until it is released and counted, and see that it stays so."""
    await control.state(ID, Phase.RELEASED, where=lambda state: state.counted)
    pins, reports = engine.commands().count("pin"), engine.commands().count("report")
    async with asyncio.timeout(10):
        while engine.commands().count("report") < reports + 10:
            engine.asked.clear()
            await engine.asked.wait()
    assert engine.commands().count("pin") == pins
    assert not engine.pins()


async def test_after_a_restart_an_idle_prefix_is_warmed_once_and_rests(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with running(engine, control, tmp_path), planning(control):
        await rests(engine, control)
        assert engine.commands().count("pin") == 1
        engine.restart()
        await control.state(ID, Phase.WARM)
        await rests(engine, control)
        assert engine.commands().count("pin") == 2


async def test_after_a_restart_of_the_sidecar_an_idle_prefix_goes_on_resting(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with planning(control):
        async with running(engine, control, tmp_path):
            await rests(engine, control)
        control.states.clear()
        async with running(engine, control, tmp_path):
            await rests(engine, control)
    assert engine.commands().count("pin") == 1
