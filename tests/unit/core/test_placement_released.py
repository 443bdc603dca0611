"""Releases in a plan: what nobody asks for, and what brings it back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from promptprefix.fleet import Override, Snapshot
from promptprefix.resource import Condition
from promptprefix.wire import HARD_PINS, OnIdle, Phase

from .fleets import (
    NOW,
    fleet,
    holders,
    planned,
    pods,
    prefix,
    ready,
    sidecar,
    state,
)


def idle(**fields: object) -> Snapshot:
    """Return a fleet whose one prefix was not matched for long, held warm on one of two pods."""
    spec = {"idleTTL": "600s", "onIdle": "Evict"}
    held = prefix("x", blocks=8, age=60, spec=spec, **fields)
    snapshot = fleet([held], pods(2), 10, routed=frozenset({"ml"}))
    report = state("x-1", 8)
    return replace(snapshot, sidecars={**snapshot.sidecars, "uid-p0": sidecar(report, budget=10)})


def test_a_released_prefix_stays_placed_takes_no_room_and_is_routed() -> None:
    snapshot = idle()
    made = planned(replace(snapshot, prefixes=(*snapshot.prefixes, prefix("y", blocks=10))))
    assert [(e.id, e.release) for e in made.desired["uid-p0"]] == [("x-1", OnIdle.EVICT)]
    assert holders(made, "y-1") == {"p1"}
    full = planned(
        replace(snapshot, prefixes=(*snapshot.prefixes, prefix("y", blocks=10, replicas=2)))
    )
    assert holders(full, "y-1") == {"p0", "p1"}
    assert [each.id for each in made.prefixes] == ["x-1", "y-1"]
    assert ready(made, "x")[:2] == ("False", "Releasing")
    assert made.statuses["x"].desiredPods == 0


def test_a_released_prefix_is_green_and_comes_back_where_it_was() -> None:
    snapshot = idle()
    released = state("x-1", 8, Phase.RELEASED).model_copy(update={"released": OnIdle.EVICT})
    cold = replace(snapshot, sidecars={**snapshot.sidecars, "uid-p0": sidecar(released, budget=10)})
    made = planned(cold)
    assert [(e.id, e.release) for e in made.desired["uid-p0"]] == [("x-1", OnIdle.EVICT)]
    assert ready(made, "x")[:2] == ("True", "Released")
    hit = released.model_copy(update={"last_hit": NOW.timestamp() - 1})
    matched = replace(snapshot, sidecars={**snapshot.sidecars, "uid-p0": sidecar(hit, budget=10)})
    again = planned(matched)
    assert holders(again, "x-1") == {"p0"}
    assert again.wake_at is not None
    assert timedelta(seconds=599) <= again.wake_at - NOW < timedelta(minutes=11)


def test_orders_of_a_person_on_call_and_what_a_plugin_sees_decide() -> None:
    assert holders(planned(idle(warm_now=Override())), "x-1") == {"p0"}
    unseen = replace(idle(), routed=frozenset())
    assert holders(planned(unseen), "x-1") == {"p0"}
    warm = state("x-1", 8)
    plugged = {"uid-p0": sidecar(warm, budget=10, capabilities=(HARD_PINS,))}
    assert holders(planned(replace(unseen, sidecars=unseen.sidecars | plugged)), "x-1") == {"p0"}
    counted = warm.model_copy(update={"counted": True})
    plugged = {"uid-p0": sidecar(counted, budget=10, capabilities=(HARD_PINS,))}
    seen = planned(replace(unseen, sidecars=unseen.sidecars | plugged))
    assert holders(seen, "x-1") == set()
    always = prefix("x", blocks=8, unpin=Override())
    given_up = planned(replace(unseen, prefixes=(always,)))
    assert [each.release for each in given_up.desired["uid-p0"]] == [OnIdle.KEEP]


@pytest.mark.parametrize("let_go", [True, False])
@pytest.mark.parametrize("silent", [True, False])
def test_a_router_that_falls_silent_warms_nothing_and_releases_nothing(
    let_go: bool, silent: bool
) -> None:
    """Without any router what was let go is warmed once where nobody counts its matches."""
    active = {"type": "Active", "lastTransitionTime": NOW, "message": ""}
    reason = {"status": "False", "reason": "Idle"} if let_go else {"status": "True", "reason": "x"}
    start = idle(conditions=(Condition.model_validate(active | reason),))
    released = state("x-1", 8, Phase.RELEASED).model_copy(update={"released": OnIdle.EVICT})
    soft = sidecar(released if let_go else state("x-1", 8), budget=10, soft_reason="no plugin")
    told = replace(start, sidecars={**start.sidecars, "uid-p0": soft})
    quiet = frozenset({"ml"}) if silent else frozenset()
    made = planned(replace(told, routed=frozenset(), silent=quiet))
    assert holders(made, "x-1") == (set() if let_go and silent else {"p0"})
    assert holders(planned(told), "x-1") == set()
