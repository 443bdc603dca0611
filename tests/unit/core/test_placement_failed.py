"""Pods that can't warm a text: others stand in for them, and it comes to rest."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.fleet import Sidecar, Snapshot
from promptprefix.placement import Plan, Planner
from promptprefix.wire import Phase, PlacementState, SidecarState

from .fleets import NOW, fleet, holders, planned, pods, prefix, ready, sidecar, state, told


def obeying(snapshot: Snapshot, made: Plan, bad: set[str], phase: Phase) -> Snapshot:
    """Return the snapshot in which all pods but the bad ones have warmed what they are told."""

    def seen(uid: str, id_: str) -> PlacementState:
        if uid not in bad:
            return state(id_, 4)
        return state(id_, 4, phase).model_copy(update={"reason": "WarmFailed"})

    sidecars: dict[str, Sidecar] = {}
    for uid, each in snapshot.sidecars.items():
        held = tuple(seen(uid, placement.id) for placement in made.desired[uid])
        sidecars[uid] = Sidecar(
            SidecarState(engine=each.state.engine, placements=held), *told(made.desired[uid])
        )
    return replace(snapshot, sidecars=sidecars)


def failing(*bad: int, count: int, replicas: int) -> Snapshot:
    held = prefix("x", blocks=4, replicas=replicas)
    broken = state("x-1", 4, Phase.FAILED)
    sidecars = {
        f"uid-p{index}": sidecar(broken, budget=10, told=["x-1"])
        if index in bad
        else sidecar(budget=10)
        for index in range(count)
    }
    return fleet([held], pods(count), 10, sidecars=sidecars)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.WARMING])
def test_another_pod_stands_in_and_the_one_that_failed_goes_when_that_is_warm(phase: Phase) -> None:
    start = failing(0, count=2, replicas=1)
    made = planned(start)
    assert holders(made, "x-1") == {"p0", "p1"}
    assert made.statuses["x"].desiredPods == 1
    waiting = {**start.sidecars, "uid-p1": sidecar(budget=10, told=["x-1"])}
    assert planned(replace(start, sidecars=waiting)).desired == made.desired
    after = obeying(start, made, {"uid-p0"}, phase)
    done = planned(after)
    assert holders(done, "x-1") == {"p1"}
    assert ready(done, "x")[:2] == ("True", "Warm")
    assert planned(obeying(after, done, {"uid-p0"}, phase)).desired == done.desired


def test_without_another_pod_with_room_it_stays_where_it_failed() -> None:
    start = failing(0, count=2, replicas=1)
    alone = replace(start, pods=start.pods[:1])
    assert holders(planned(alone), "x-1") == {"p0"}
    small = {**start.sidecars, "uid-p1": sidecar(budget=3)}
    made = planned(replace(start, sidecars=small))
    assert holders(made, "x-1") == {"p0"}
    assert ready(made, "x")[:2] == ("False", "WarmFailed")


def test_a_text_that_no_pod_can_warm_is_tried_on_few() -> None:
    snapshot = failing(count=9, replicas=1)
    every = {each.uid for each in snapshot.pods}
    planner = Planner()
    tried: set[str] = set()
    for _ in range(6):
        made = planner.plan(snapshot, NOW)
        assert made == planned(snapshot)
        tried |= holders(made, "x-1")
        snapshot = obeying(snapshot, made, every, Phase.FAILED)
    assert len(tried) == 3
    assert holders(planned(snapshot), "x-1") == tried


@settings(max_examples=60, deadline=None, phases=(Stage.explicit, Stage.generate))
@given(st.integers(0, 2**32))
def test_it_comes_to_rest(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - no secret
    count, replicas = rng.randint(1, 6), rng.randint(1, 3)
    snapshot = failing(count=count, replicas=replicas)
    bad = {each.uid for each in snapshot.pods if rng.random() < 0.5}
    made = planned(snapshot)
    for _ in range(5):
        snapshot = obeying(snapshot, made, bad, rng.choice([Phase.FAILED, Phase.WARMING]))
        made = planned(snapshot)
    for _ in range(3):
        snapshot = obeying(snapshot, made, bad, rng.choice([Phase.FAILED, Phase.WARMING]))
        assert planned(snapshot).desired == made.desired
    warm = {f"uid-{name}" for name in holders(made, "x-1")} - bad
    assert len(warm) <= replicas
    if len(bad) <= 2:
        assert len(warm) == min(replicas, count - len(bad))
