"""The loop: passes, failed plans, and deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from promptprefix.fleet import Limits, Snapshot
from promptprefix.lint import lint_payload
from promptprefix.placement import Plan, Planner
from promptprefix.resource import Pinning
from promptprefix.wire import EngineState, Phase, PlacementState, SidecarState
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.controller import Controller
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.matches import Matches
from promptprefix_operator.measures import Measures
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import HEARING_SECONDS, ROUTER_SECONDS, Routers
from promptprefix_operator.salts import Salts
from promptprefix_operator.settling import RECONNECT_S, Settling
from promptprefix_operator.sidecars import Sidecars

NOW = datetime(2026, 11, 29, tzinfo=UTC)


class Bench:
    """A controller with one pod; ``now`` is its monotonic clock."""

    def __init__(self, limits: Mapping[str, Limits] | None = None) -> None:
        self.now = 100.0
        self.wake = asyncio.Event()
        self.cluster = Cluster(self.wake.set)
        self.sidecars = Sidecars(lambda: self.now, 45, self.wake.set, lambda: NOW)
        self.publication = Publication(1)
        self.metrics = Metrics()
        self.routers = Routers(lambda: self.now, self.wake.set)
        self.matches = Matches(lambda: NOW, self.routers, self.wake.set)
        self.planner = Planner()
        self.controller = Controller(
            cluster=self.cluster,
            sidecars=self.sidecars,
            declarations=Declarations(lint_payload, Salts()),
            matches=self.matches,
            routers=self.routers,
            measures=Measures(),
            planner=lambda: self.planner,
            publication=self.publication,
            metrics=self.metrics,
            now=lambda: NOW,
            clock=lambda: self.now,
            wake=self.wake,
            resync_seconds=30,
            settling=Settling(lambda: self.now, lambda: None, RECONNECT_S),
            limits=limits,
        )
        pod = {"uid": "p", "namespace": "ml", "name": "p", "labels": {"app": "v"}}
        self.cluster.see_pod({"metadata": pod, "status": {"podIP": "10.0.0.1"}})

    def declare(self) -> None:
        metadata: dict[str, Any] = {"uid": "u", "namespace": "ml", "name": "a", "generation": 1}
        spec = {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "x"}},
        }
        self.cluster.see_resource({"metadata": metadata, "spec": spec})

    def report(self, *held: str) -> None:
        engine = EngineState(healthy=True, address="a", port=1, models=("m",), block_size=16)
        placements = tuple(
            PlacementState(id=id_, phase=Phase.WARM, tokens=16, pinned=Pinning.HARD) for id_ in held
        )
        state = SidecarState(engine=engine, placements=placements)
        self.sidecars.report("p", state, self.publication.set_of("p").revision)


@pytest.mark.parametrize("error", [ValueError, LookupError, TypeError, OverflowError])
def test_a_plan_that_fails_leaves_the_one_before_in_force(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    bench = Bench()
    bench.declare()
    bench.report()
    bench.controller.step()
    before = bench.publication.set_of("p")
    assert len(before.placements) == 1

    def fail(*_: object) -> None:
        raise error("a defect")

    monkeypatch.setattr(bench.planner, "plan", fail)
    bench.now += 5
    bench.controller.step()
    assert bench.publication.set_of("p") == before
    assert bench.publication.passes == 1
    assert bench.controller.pass_age == 5.0
    assert bench.metrics.registry.get_sample_value("promptprefix_operator_plan_errors_total") == 1


def test_the_planner_is_told_of_limits_sizes_and_silent_routers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"ml": Limits(budget_share=0.5)}
    bench = Bench(limits)
    seen: list[Snapshot] = []
    plan = bench.planner.plan

    def keep(snapshot: Snapshot, now: datetime) -> Plan:
        seen.append(snapshot)
        return plan(snapshot, now)

    monkeypatch.setattr(bench.planner, "plan", keep)
    bench.declare()
    bench.now += HEARING_SECONDS
    bench.report()
    bench.routers.hear("ml", "r0")
    bench.controller.step()
    [placement] = bench.publication.set_of("p").placements
    bench.now += ROUTER_SECONDS
    bench.report(placement.id)
    bench.controller.step()
    first, last = seen
    assert (first.limits, first.sizes, first.silent) == (limits, {}, frozenset())
    assert last.sizes == {placement.id: ((16, 16, ()),)}
    assert last.silent == {"ml"}


def test_apply_to_warm_is_timed_once() -> None:
    bench = Bench()
    bench.declare()
    bench.report()
    bench.controller.step()
    [placement] = bench.publication.set_of("p").placements
    bench.now += 4
    for _ in range(2):
        bench.report(placement.id)
        bench.controller.step()
    read = bench.metrics.registry.get_sample_value
    assert read("promptprefix_apply_to_warm_seconds_count") == 1
    assert read("promptprefix_apply_to_warm_seconds_sum") == 4.0


def test_a_deleted_resource_leaves_the_sets_with_the_next_pass() -> None:
    bench = Bench()
    bench.declare()
    bench.report()
    bench.controller.step()
    [placement] = bench.publication.set_of("p").placements
    bench.report(placement.id)
    bench.wake.clear()
    bench.cluster.forget_resource("u")
    assert bench.wake.is_set()
    bench.controller.step()
    assert bench.publication.set_of("p").placements == ()
    assert bench.controller.status("u") is None


async def test_wake_ups_are_coalesced_into_one_pass() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.controller.run())
    await bench.publication.wait()
    for _ in range(5):
        bench.wake.set()
        await asyncio.sleep(0)
    bench.report()
    await asyncio.wait_for(bench.publication.wait(), 5)
    assert bench.publication.passes == 2
    assert not bench.wake.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_plans_again_when_sidecars_have_had_their_time_to_report() -> None:
    bench = Bench()
    bench.now += RECONNECT_S - 0.2
    task = asyncio.create_task(bench.controller.run())
    async with asyncio.timeout(10):
        while bench.publication.passes < 2:
            await bench.publication.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
