"""The loop and the clock: what windows and idle times do to the published sets, on time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from promptprefix.history import QUIET
from promptprefix.lint import lint_payload
from promptprefix.placement import Planner
from promptprefix.resource import OnIdle, Pinning, PromptPrefixStatus
from promptprefix.wire import (
    HARD_PINS,
    MATCH_STEP_S,
    EngineState,
    Phase,
    Placement,
    PlacementState,
    SidecarState,
)
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.controller import Controller
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.matches import Matches
from promptprefix_operator.measures import Measures
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import Routers
from promptprefix_operator.salts import Salts
from promptprefix_operator.settling import Settling
from promptprefix_operator.sidecars import Sidecars

EDGE = datetime(2026, 11, 29, 18, tzinfo=UTC)
OFFICE = {"name": "office", "schedule": "0 8 * * *", "duration": "10h", "timeZone": "UTC"}


class Bench:
    """A controller with one pod and one resource, held until `EDGE` or longer."""

    def __init__(self, now: Callable[[], datetime], **spec: Any) -> None:
        """``spec`` overrides what is declared."""
        self.now = now
        self.wake = asyncio.Event()
        self.cluster = Cluster(self.wake.set)
        self.sidecars = Sidecars(time.monotonic, 45, self.wake.set, now)
        self.publication = Publication(1)
        planner = Planner()
        routers = Routers(time.monotonic, self.wake.set)
        self.controller = Controller(
            cluster=self.cluster,
            sidecars=self.sidecars,
            declarations=Declarations(lint_payload, Salts()),
            matches=Matches(now, routers, self.wake.set),
            routers=routers,
            measures=Measures(),
            planner=lambda: planner,
            publication=self.publication,
            metrics=Metrics(),
            now=now,
            clock=time.monotonic,
            wake=self.wake,
            resync_seconds=600,
            settling=Settling(time.monotonic, lambda: None, 0),
        )
        pod = {"uid": "p", "namespace": "ml", "name": "p", "labels": {"app": "v"}}
        self.cluster.see_pod({"metadata": pod, "status": {"podIP": "10.0.0.1"}})
        self.declared: dict[str, Any] = {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "x"}},
            "onIdle": "Evict",
        }
        self.declared |= spec
        self.declare()
        self.report()

    def declare(
        self,
        status: PromptPrefixStatus | None = None,
        annotations: dict[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """Declare the resource with these changes; a ``status`` is one that is written."""
        metadata: dict[str, Any] = {"uid": "u", "namespace": "ml", "name": "a", "generation": 1}
        seen = {"metadata": metadata, "spec": self.declared | changes}
        if annotations:
            metadata["annotations"] = annotations
        if status is not None:
            seen["status"] = status.model_dump(mode="json", exclude_none=True)
        self.cluster.see_resource(seen)

    def report(self, sent: float | None = None, **state: Any) -> None:
        engine = EngineState(
            healthy=True,
            address="a",
            port=1,
            models=("m",),
            block_size=16,
            blocks_total=100,
            capabilities=(HARD_PINS,),
        )
        state = {"counted": True, **state} if state else {}
        known = [PlacementState(id=each.id, tokens=16, **state) for each in self.set if state]
        told = SidecarState(engine=engine, placements=tuple(known))
        self.sidecars.report("p", told, self.publication.set_of("p").revision, sent)

    @property
    def set(self) -> tuple[Placement, ...]:
        return self.publication.set_of("p").placements

    @property
    def status(self) -> PromptPrefixStatus:
        found = self.controller.status("u")
        assert found is not None
        return found

    def told(self) -> dict[str, tuple[str, str]]:
        return {each.type: (each.status, each.reason) for each in self.status.conditions}


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, time: datetime) -> None:
        self.time = time

    def __call__(self) -> datetime:
        return self.time


def test_the_life_of_a_window() -> None:
    clock = Clock(EDGE - timedelta(hours=11))
    bench = Bench(clock, windows=[OFFICE])
    bench.controller.step()
    assert bench.set == ()
    assert bench.told()["Ready"] == ("True", "Released")
    assert bench.status.nextTransitionTime == EDGE - timedelta(hours=10)

    clock.time = EDGE - timedelta(hours=10)
    bench.controller.step()
    assert [each.release for each in bench.set] == [None]
    assert bench.told()["Ready"] == ("False", "Warming")
    bench.report(phase=Phase.WARM, pinned=Pinning.HARD, pinned_tokens=16)
    bench.controller.step()
    assert bench.told()["Ready"] == ("True", "Warm")
    assert bench.told()["Active"] == ("True", "InWindow")
    assert (bench.status.activeWindow, bench.status.nextTransitionTime) == ("office", EDGE)

    clock.time = EDGE
    bench.controller.step()
    assert [each.release for each in bench.set] == [OnIdle.EVICT]
    assert bench.told()["Ready"] == ("False", "Releasing")
    bench.report(phase=Phase.RELEASED, released=OnIdle.EVICT)
    bench.controller.step()
    assert bench.told()["Ready"] == ("True", "Released")
    assert bench.told()["Active"] == ("False", "OutsideWindows")
    assert bench.told()["Warm"] == ("False", "Released")
    assert (bench.status.activeWindow, bench.status.desiredPods) == ("", 0)


def test_an_idle_prefix_is_held_again_at_its_next_match() -> None:
    clock = Clock(EDGE)
    bench = Bench(clock, idleTTL="10m")
    bench.controller.step()
    hit = EDGE.timestamp()
    bench.report(phase=Phase.WARM, pinned=Pinning.HARD, pinned_tokens=16, last_hit=hit)
    bench.controller.step()
    assert bench.told()["Active"] == ("True", "InUse")

    clock.time += timedelta(minutes=10, seconds=MATCH_STEP_S)
    bench.controller.step()
    assert [each.release for each in bench.set] == [OnIdle.EVICT]
    bench.report(phase=Phase.RELEASED, released=OnIdle.EVICT, last_hit=hit)
    bench.controller.step()
    assert bench.told()["Active"] == ("False", "Idle")
    first = bench.status
    clock.time += timedelta(hours=5)
    bench.controller.step()
    assert bench.status == first

    bench.report(phase=Phase.RELEASED, released=OnIdle.EVICT, last_hit=clock.time.timestamp() - 1)
    bench.controller.step()
    assert [each.release for each in bench.set] == [None]
    assert bench.told()["Active"] == ("True", "InUse")


async def test_the_loop_wakes_at_the_window_s_end() -> None:
    began = time.monotonic()
    bench = Bench(
        lambda: EDGE + timedelta(seconds=time.monotonic() - began - 0.4), windows=[OFFICE]
    )
    bench.controller.step()
    assert [each.release for each in bench.set] == [None]
    bench.report(phase=Phase.WARM, pinned=Pinning.HARD, pinned_tokens=16)
    task = asyncio.create_task(bench.controller.run())
    async with asyncio.timeout(10):
        while [each.release for each in bench.set] == [None]:
            await bench.publication.wait()
    assert bench.now() >= EDGE
    assert bench.now() < EDGE + timedelta(seconds=5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_loop_wakes_when_an_edit_has_waited() -> None:
    began, clock = time.monotonic(), Clock(EDGE)
    bench = Bench(lambda: clock.time + timedelta(seconds=time.monotonic() - began))
    bench.controller.step()
    bench.report(phase=Phase.WARM, pinned=Pinning.HARD, pinned_tokens=16)
    bench.controller.step()
    bench.declare(content={"inline": {"systemInstructions": "y"}})
    bench.controller.step()
    assert len(bench.set) == 1, "there may be more edits"
    clock.time += QUIET - timedelta(seconds=0.4)
    task = asyncio.create_task(bench.controller.run())
    async with asyncio.timeout(10):
        while len(bench.set) == 1:
            await bench.publication.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_idle_prefix_that_nobody_counts_is_held_once_until_somebody_does() -> None:
    clock = Clock(EDGE + timedelta(hours=1))
    bench = Bench(clock, idleTTL="10m")
    bench.controller.step()
    warm = {"phase": Phase.WARM, "pinned": Pinning.HARD, "pinned_tokens": 16}
    rest = {"phase": Phase.RELEASED, "released": OnIdle.EVICT}
    clock.time += timedelta(hours=1)
    for report, held in (
        ({"phase": Phase.PENDING, "counted": False}, True),
        (warm, False),
        (rest, False),
        ({**rest, "counted": False}, True),  # the engine has restarted
        ({"phase": Phase.WARMING, "counted": False}, True),
        (warm, False),
        (rest, False),
    ):
        bench.report(**report)
        bench.controller.step()
        assert [each.release is None for each in bench.set] == [held]
