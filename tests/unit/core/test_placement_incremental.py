"""A planner that has seen other fleets before plans as one that has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from promptprefix.fleet import Snapshot
from promptprefix.placement import Plan, Planner, plan
from promptprefix.resource import PromptPrefixStatus

from . import drift
from .fleets import NOW

MANY = settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))


def dated(snapshot: Snapshot, made: Plan) -> Snapshot:
    """Return the snapshot whose resources bear the conditions that the plan told last."""
    prefixes = tuple(
        replace(each, conditions=tuple(made.statuses[each.uid].conditions))
        if each.uid in made.statuses
        else each
        for each in snapshot.prefixes
    )
    return replace(snapshot, prefixes=prefixes)


def undated(statuses: Mapping[str, PromptPrefixStatus]) -> Mapping[str, PromptPrefixStatus]:
    """Return statuses without the times of what was told first, which is at some earlier plan."""
    return {
        uid: each.model_copy(
            update={
                "conditions": [
                    condition.model_copy(update={"lastTransitionTime": NOW})
                    for condition in each.conditions
                ],
                "versions": [
                    version.model_copy(update={"since": NOW, "lastMatched": None})
                    for version in each.versions
                ],
            }
        )
        for uid, each in statuses.items()
    }


@MANY
@example(32890)
@given(st.integers(0, 2**32))
def test_after_any_changes_a_plan_is_one_from_scratch(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - no secret
    snapshot, planner = drift.begun(rng), Planner()
    for _ in range(25):
        made = planner.plan(snapshot, NOW)
        assert made == plan(snapshot, NOW)
        if rng.random() < 0.1:
            snapshot = dated(snapshot, made)
        snapshot = drift.drifted(rng, snapshot)


@MANY
@example(6355076)
@given(st.integers(0, 2**32))
def test_at_any_time_a_plan_is_one_from_scratch(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - no secret
    snapshot, now, planner = drift.begun(rng), NOW, Planner()
    for _ in range(25):
        made, fresh = planner.plan(snapshot, now), plan(snapshot, now)
        assert undated(made.statuses) == undated(fresh.statuses)
        assert replace(made, statuses={}) == replace(fresh, statuses={})
        snapshot = drift.drifted(rng, snapshot)
        now = drift.later(rng, now, made.wake_at)


@settings(MANY, max_examples=10)
@given(st.integers(0, 2**32))
def test_where_sidecars_fall_silent_a_plan_is_one_from_scratch(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - no secret
    snapshot, planner = drift.begun(rng), Planner()
    for _ in range(25):
        assert planner.plan(snapshot, NOW) == plan(snapshot, NOW)
        snapshot = drift.hushed(rng, drift.drifted(rng, snapshot))
