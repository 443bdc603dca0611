"""What holds of every plan, whatever the fleet."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from unittest.mock import patch

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from promptprefix.fleet import Limits, Prefix, Snapshot
from promptprefix.placement import Plan, Planner, plan
from promptprefix.resource import Pinning

from .fleets import (
    MODEL,
    NOW,
    budget,
    fleet,
    fleet_of,
    holders,
    mixed,
    obeyed,
    pinned,
    planned,
    pod,
    prefix,
    ready,
    remembered,
    size_on,
    state,
    union,
    used,
)

MANY = settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.generate))
SEEDS = st.integers(0, 2**32)
"""A fleet follows from its seed: a smaller one is no smaller fleet, so none is looked for."""


def wants_more(snapshot: Snapshot, made: Plan, each: Prefix) -> bool:
    """Whether a held prefix is on fewer eligible pods than it could be on."""
    assert each.spec is not None
    fit = eligible(snapshot)
    counted = holders(made, f"{each.uid}-1") | holders(made, f"{each.uid}-0")
    return each.unpin is None and len(counted & fit) < min(
        each.spec.pods_wanted(len(fit)), len(fit)
    )


def eligible(snapshot: Snapshot) -> set[str]:
    return {
        each.name
        for each in snapshot.pods
        if not each.leaving
        and not each.decodes
        and (found := snapshot.sidecars.get(each.uid)) is not None
        and found.state.engine.healthy
        and not found.state.engine.asleep
        and MODEL in found.state.engine.models
    }


def sized(snapshot: Snapshot, id_: str) -> bool:
    """Whether a pod has told how large a version is, or did before."""
    return id_ in remembered(snapshot, snapshot.sidecars)


def priority(snapshot: Snapshot, each: Prefix) -> int:
    assert each.spec is not None
    return min(each.spec.priority, snapshot.limits.get("ml", Limits()).max_priority)


@MANY
@given(SEEDS)
def test_no_pod_is_over_its_budget(seed: int) -> None:
    snapshot = fleet_of(seed)
    made = planned(snapshot)
    for uid in made.desired:
        assert used(snapshot, made, uid) <= budget(snapshot, uid)


@MANY
@given(SEEDS)
def test_nobody_is_short_of_room_that_a_lower_priority_holds(seed: int) -> None:
    snapshot = fleet_of(seed)
    made = planned(snapshot)
    by_uid = {each.uid: each for each in snapshot.prefixes}
    for each in snapshot.prefixes:
        assert each.spec is not None
        if not wants_more(snapshot, made, each) or not sized(snapshot, f"{each.uid}-1"):
            continue
        held = holders(made, f"{each.uid}-1") | holders(made, f"{each.uid}-0")
        for name in eligible(snapshot) - held:
            uid = f"uid-{name}"
            rivals = [
                size_on(snapshot, uid, placement.id)
                for placement in pinned(made, uid)
                if priority(snapshot, by_uid[placement.name]) >= priority(snapshot, each)
            ]
            own = size_on(snapshot, uid, f"{each.uid}-1")
            assert each.spec.pinning is not Pinning.NONE
            assert union([*rivals, own]) > budget(snapshot, uid)


@MANY
@given(SEEDS)
def test_who_is_short_is_told_why(seed: int) -> None:
    snapshot = fleet_of(seed)
    made = planned(snapshot)
    for each in snapshot.prefixes:
        if wants_more(snapshot, made, each):
            status, reason, message = ready(made, each.uid)
            assert (status, reason) == ("False", "BudgetExceeded"), message


@MANY
@given(SEEDS)
def test_a_plan_that_was_carried_out_is_the_next_plan(seed: int) -> None:
    snapshot = fleet_of(seed, steady=True)
    first = planned(snapshot)
    second_state = obeyed(snapshot, first)
    second = planned(second_state)
    third_state = obeyed(second_state, second)
    third = planned(third_state)
    assert third.desired == planned(obeyed(third_state, third)).desired


@MANY
@given(SEEDS)
def test_plans_do_not_depend_on_order(seed: int) -> None:
    snapshot, rng = fleet_of(seed), Random(seed)  # noqa: S311 - no secret
    members, prefixes = list(snapshot.pods), list(snapshot.prefixes)
    rng.shuffle(members)
    rng.shuffle(prefixes)
    sidecars = list(snapshot.sidecars.items())
    rng.shuffle(sidecars)
    shuffled = replace(
        snapshot, pods=tuple(members), prefixes=tuple(prefixes), sidecars=dict(sidecars)
    )
    assert planned(shuffled) == planned(snapshot)


@MANY
@given(SEEDS)
def test_what_a_planner_remembers_changes_no_plan(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - no secret
    planner, snapshot = Planner(), fleet_of(seed)
    for turn in range(5):
        assert planner.plan(snapshot, NOW) == planned(snapshot)
        if rng.random() < 0.5:
            snapshot = obeyed(snapshot, planned(snapshot))
            assert planner.plan(snapshot, NOW) == planned(snapshot)
        snapshot = mixed(rng, snapshot, fleet_of(seed + turn + 1))


@MANY
@example(29)
@example(702)
@given(SEEDS)
def test_where_all_have_room_they_keep_what_they_would_keep_in_turn(seed: int) -> None:
    snapshot = fleet_of(seed)
    for _ in range(2):
        with patch("promptprefix.assignment._have_room", return_value=False):
            in_turn = planned(snapshot)
        assert planned(snapshot) == in_turn
        snapshot = obeyed(snapshot, in_turn)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(1, 30), st.integers(1, 3), st.integers(0, 8))
def test_a_pod_that_goes_moves_its_own_prefixes_alone(
    count: int, prefixes: int, replicas: int, gone: int
) -> None:
    wanted = [prefix(f"x{index}", blocks=3, replicas=replicas) for index in range(prefixes)]
    start = fleet(wanted, (pod(f"p{index}") for index in range(count)), 90)
    before = obeyed(start, planned(start))
    lost = before.pods[gone % count]
    after = planned(
        replace(
            before,
            pods=tuple(each for each in before.pods if each != lost),
            sidecars={uid: each for uid, each in before.sidecars.items() if uid != lost.uid},
        )
    )
    for uid, held in planned(before).desired.items():
        if uid != lost.uid:
            assert set(held) <= set(after.desired[uid])
    back = planned(before)
    assert len(back.desired[lost.uid]) <= -(-prefixes * min(replicas, count) // count) + 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 3))
def test_a_pod_that_comes_moves_nothing(count: int, prefixes: int, replicas: int) -> None:
    wanted = [
        prefix(f"x{index}", blocks=3, replicas=min(replicas, count)) for index in range(prefixes)
    ]
    start = fleet(wanted, (pod(f"p{index}") for index in range(count)), 90)
    before = obeyed(start, planned(start))
    newcomer = pod("p99", zone="elsewhere")
    joined = replace(
        before,
        pods=(*before.pods, newcomer),
        sidecars={
            **before.sidecars,
            newcomer.uid: next(iter(fleet([], [newcomer], 90).sidecars.values())),
        },
    )
    assert planned(joined).desired == {**planned(before).desired, newcomer.uid: ()}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
def test_replicas_are_spread_over_zones_and_nodes(zones: int, per_zone: int, replicas: int) -> None:
    members = [
        pod(f"p{zone}{index}", zone=f"z{zone}", node=f"n{zone}{index // 2}")
        for zone in range(zones)
        for index in range(per_zone)
    ]
    made = planned(fleet([prefix("x", blocks=1, replicas=replicas)], members, 10))
    chosen = [each for each in members if each.name in holders(made, "x-1")]
    assert len(chosen) == min(replicas, len(members))
    counts = [sum(each.zone == f"z{zone}" for each in chosen) for zone in range(zones)]
    assert max(counts) - min(counts) <= 1
    for zone in range(zones):
        nodes = {each.node for each in members if each.zone == f"z{zone}"}
        on = [sum(each.node == node for each in chosen) for node in nodes]
        assert max(on) - min(on) <= 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["", "a", "ab", "abcd", "abcx", "b"])),
        max_size=6,
    )
)
def test_shared_heads_count_as_their_digests_say(sized: list[tuple[int, str]]) -> None:
    reports = [state(f"x{i}-1", blocks, head=head) for i, (blocks, head) in enumerate(sized)]
    together = union((each.tokens // 16, each.heads) for each in reports)
    prefixes = [prefix(f"x{i}", blocks=blocks) for i, (blocks, _) in enumerate(sized)]
    one = fleet(prefixes, [pod("p")], together)
    engine = one.sidecars["uid-p"]

    def placed(room: int) -> int:
        state_ = engine.state.model_copy(
            update={
                "engine": engine.state.engine.model_copy(update={"budget_blocks": room}),
                "placements": tuple(reports),
            }
        )
        made = planned(replace(one, sidecars={"uid-p": replace(engine, state=state_)}))
        return len(pinned(made, "uid-p"))

    if together:
        assert placed(together) == len(sized)
    if together > 1:
        assert placed(together - 1) < len(sized)


def test_time_alone_changes_a_plan_when_it_said_so() -> None:
    held = prefix("x", blocks=2, spec={"idleTTL": "600s"}, age=1)
    snapshot = fleet([held], [pod("p")], 10, routed=frozenset({"ml"}))
    made = planned(snapshot)
    assert made.wake_at == NOW + timedelta(minutes=9)
    planner = Planner()
    planner.plan(snapshot, NOW)
    for seconds in (1, 539, 540, 541):
        later = NOW + timedelta(seconds=seconds)
        assert planner.plan(snapshot, later).desired == plan(snapshot, later).desired
    assert plan(snapshot, NOW + timedelta(minutes=9)).statuses["x"].desiredPods == 0
