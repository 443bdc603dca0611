"""Pods whose sidecars are silent for a while: nothing leaves them, and others come first."""

from __future__ import annotations

from dataclasses import replace

from promptprefix.fleet import Snapshot
from promptprefix.placement import Planner

from .fleets import NOW, fleet, holders, planned, pods, prefix, ready, sidecar, state


def with_silent(snapshot: Snapshot, *silent: str) -> Snapshot:
    sidecars = {
        uid: replace(each, silent=uid.removeprefix("uid-") in silent)
        for uid, each in snapshot.sidecars.items()
    }
    return replace(snapshot, sidecars=sidecars)


def test_what_a_silent_pod_holds_stays_and_is_told_as_before() -> None:
    start = fleet([prefix("x", blocks=4)], pods(3), 10)
    held = {**start.sidecars, "uid-p1": sidecar(state("x-1", 4), budget=10, told=["x-1"])}
    known = replace(start, sidecars=held)
    planner = Planner()
    before = planner.plan(known, NOW)
    after = planner.plan(with_silent(known, "p1"), NOW)
    assert holders(after, "x-1") == {"p1"}
    assert (after.desired, after.endpoints) == (before.desired, before.endpoints)
    assert ready(after, "x") == ready(before, "x")


def test_what_is_new_goes_to_pods_that_ask_as_far_as_these_have_room() -> None:
    start = fleet([prefix("x", blocks=4, replicas=2)], pods(3), 10)
    assert holders(planned(with_silent(start, "p0")), "x-1") == {"p1", "p2"}
    assert len(holders(planned(with_silent(start, "p0", "p1")), "x-1")) == 2
    assert len(holders(planned(with_silent(start, "p0", "p1", "p2")), "x-1")) == 2


def test_a_pod_that_asks_again_is_as_good_as_any() -> None:
    planner = Planner()
    start = fleet([prefix("x", blocks=4)], pods(2), 10)
    alone = replace(start, pods=start.pods[:1], sidecars={"uid-p0": start.sidecars["uid-p0"]})
    assert holders(planner.plan(with_silent(alone, "p0"), NOW), "x-1") == {"p0"}
    more = with_silent(fleet([prefix("x", blocks=4), prefix("y", blocks=4)], pods(2), 10), "p1")
    assert holders(planner.plan(more, NOW), "y-1") == {"p0"}
    assert holders(planner.plan(with_silent(more), NOW), "y-1") == holders(planned(more), "y-1")
