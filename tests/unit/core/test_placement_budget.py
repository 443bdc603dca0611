"""Budgets, priorities, versions and releases in a plan, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from promptprefix.fleet import Limits, Prefix, Snapshot
from promptprefix.placement import Plan, Planner
from promptprefix.resource import Pinning
from promptprefix.wire import Phase

from .fleets import (
    BLOCK,
    NOW,
    as_estimated,
    fleet,
    holders,
    obeyed,
    planned,
    pod,
    pods,
    prefix,
    ready,
    sidecar,
    state,
    version,
)


def told(made: Plan, uid: str = "uid-p0") -> list[tuple[str, str, bool]]:
    return [(each.id, each.pinning.value, each.retained) for each in made.desired[uid]]


def beside(snapshot: Snapshot, another: Prefix) -> Snapshot:
    """Return the snapshot with another prefix, whose size is known."""
    sizes = {**snapshot.sizes, **as_estimated([another])}
    return replace(snapshot, prefixes=(*snapshot.prefixes, another), sizes=sizes)


def test_a_loser_is_told_who_took_the_room_and_what_would_help() -> None:
    rivals = [prefix(name, blocks=30, priority=5) for name in "abcd"]
    made = planned(fleet([*rivals, prefix("x", blocks=30)], pods(1), 125))
    assert holders(made, "x-1") == set()
    status, reason, message = ready(made, "x")
    assert (status, reason) == ("False", "BudgetExceeded")
    assert message == (
        "No room for its 30 blocks in the pin budget of 125 of any pod. Room is taken by "
        "a (priority 5, 30 blocks), b (priority 5, 30 blocks), c (priority 5, 30 blocks) and 1 "
        "more. What would help: a priority above 5, or shorten texts, lower replicas, add pods or "
        "raise the pin budget."
    )
    assert [(each.pod, each.reason) for each in made.statuses["x"].problems] == [
        ("p0", "BudgetExceeded")
    ]


def test_what_is_larger_than_any_budget_is_told_so() -> None:
    made = planned(
        fleet([prefix("x", blocks=30)], pods(2), 40, limits={"ml": Limits(budget_share=0.5)})
    )
    assert ready(made, "x")[2] == (
        "It takes 30 blocks, but pins may take at most 20 on a pod (namespace ml may use 50% of "
        "the pin budget): shorten the text, or raise that share (the chart's value limits), the "
        "pin budget or the size of the engines' KV cache."
    )


@pytest.mark.parametrize(
    ("limits", "ways"),
    [
        (
            Limits(max_priority=100),
            "shorten texts, lower replicas, add pods or raise the pin budget. A higher priority "
            "would not: 100 is the highest that counts in namespace ml.",
        ),
        (
            Limits(budget_share=0.5),
            "a priority above 100, or shorten texts, lower replicas, add pods or raise the pin "
            "budget or the namespace's share of it (the chart's value limits).",
        ),
    ],
)
def test_what_would_help_is_what_the_limits_of_the_namespace_allow(
    limits: Limits, ways: str
) -> None:
    prefixes = [prefix(name, blocks=8, priority=100, age=age) for name, age in (("a", 1), ("b", 0))]
    made = planned(
        fleet(prefixes, pods(1), 20 if limits.budget_share < 1 else 10, limits={"ml": limits})
    )
    assert ready(made, "b")[2].endswith(f"What would help: {ways}")


def test_a_capped_priority_is_told() -> None:
    prefixes = [prefix("a", blocks=8, age=1), prefix("b", blocks=8, priority=900)]
    made = planned(fleet(prefixes, pods(1), 10, limits={"ml": Limits(max_priority=0)}))
    assert holders(made, "a-1") == {"p0"}
    assert "Its priority 900 counts as 0, the highest in namespace ml." in ready(made, "b")[2]
    active = next(c for c in made.statuses["b"].conditions if c.type == "Active")
    assert active.message == (
        "Held at all times. Its priority 900 counts as 0, the highest that namespace ml may use."
    )
    assert [each.priority for each in made.desired["uid-p0"]] == [0]


def test_a_higher_priority_displaces_and_the_least_harm_is_done() -> None:
    low, middle = prefix("low", blocks=6, priority=1), prefix("middle", blocks=6, priority=2)
    start = fleet([low, middle], pods(2), 10)
    before = obeyed(start, planned(start))
    made = planned(beside(before, prefix("top", blocks=6, priority=3)))
    assert holders(made, "middle-1") == holders(planned(before), "middle-1")
    assert holders(made, "top-1") == holders(planned(before), "low-1")
    assert ready(made, "low")[1] == "BudgetExceeded"


def test_one_who_is_displaced_goes_where_there_is_room() -> None:
    low, rest = prefix("low", blocks=4, priority=1), prefix("rest", blocks=4, priority=3)
    start = fleet([low, rest], [pod("p0"), pod("p1")], 9)
    before = obeyed(start, planned(start))
    made = planned(beside(before, prefix("big", blocks=9, priority=2)))
    assert holders(made, "big-1") == holders(planned(before), "low-1")
    assert holders(made, "low-1") == holders(made, "rest-1")


def test_equals_do_not_displace_each_other() -> None:
    held = prefix("held", blocks=8)
    start = fleet([held], pods(1), 10)
    before = obeyed(start, planned(start))
    made = planned(replace(before, prefixes=(held, prefix("older", blocks=8, age=60))))
    assert holders(made, "held-1") == {"p0"}
    assert ready(made, "older")[1] == "BudgetExceeded"


def test_room_is_used_before_anybody_is_displaced() -> None:
    low = prefix("low", blocks=8)
    start = fleet([low], pods(2), 10)
    before = obeyed(start, planned(start))
    made = planned(replace(before, prefixes=(low, prefix("top", blocks=8, priority=9))))
    assert holders(made, "low-1") | holders(made, "top-1") == {"p0", "p1"}


@pytest.mark.parametrize(
    ("replicas", "count"), [(2, 2), ("50%", 3), ("1%", 1), ("100%", 5), ("All", 5)]
)
def test_numbers_shares_and_all(replicas: int | str, count: int) -> None:
    made = planned(fleet([prefix("x", blocks=1, replicas=replicas)], pods(5), 10))
    assert len(holders(made, "x-1")) == count
    assert made.statuses["x"].desiredPods == count


def test_all_is_on_those_that_have_room_and_says_on_which_not() -> None:
    small = sidecar(budget=4)
    snapshot = fleet([prefix("x", blocks=8, replicas="All")], pods(3), 10)
    snapshot = replace(snapshot, sidecars={**snapshot.sidecars, "uid-p1": small})
    made = planned(snapshot)
    assert holders(made, "x-1") == {"p0", "p2"}
    assert ready(made, "x")[2].startswith("Placed on 2 of 3 pods. No room for its 8 blocks")
    assert [each.pod for each in made.statuses["x"].problems] == ["p1"]


def test_what_is_not_pinned_takes_no_room() -> None:
    loose = [prefix(name, blocks=30, spec={"pinning": "None"}) for name in "ab"]
    made = planned(fleet([*loose, prefix("c", blocks=10)], pods(1), 10))
    assert [holders(made, f"{name}-1") for name in "abc"] == [{"p0"}] * 3


def test_without_a_word_of_its_blocks_an_engine_refuses_nothing() -> None:
    made = planned(fleet([prefix("x", blocks=10_000)], pods(1)))
    assert holders(made, "x-1") == {"p0"}


def test_without_a_budget_half_of_the_blocks_may_be_pinned() -> None:
    snapshot = fleet([prefix("x", blocks=51)], pods(1), 50)
    engine = snapshot.sidecars["uid-p0"].state.engine.model_copy(update={"budget_blocks": 0})
    sidecars = {"uid-p0": sidecar(**dict(engine))}
    assert holders(planned(replace(snapshot, sidecars=sidecars)), "x-1") == set()
    fits = fleet([prefix("x", blocks=50)], pods(1), sidecars=sidecars)
    assert holders(planned(fits), "x-1") == {"p0"}


def test_decode_pods_and_sleeping_engines_are_not_chosen() -> None:
    snapshot = fleet([prefix("x", replicas=2)], [pod("p0", decodes=True), *pods(3)[1:]], 10)
    snapshot = replace(
        snapshot, sidecars={**snapshot.sidecars, "uid-p1": sidecar(budget=10, asleep=True)}
    )
    made = planned(snapshot)
    assert holders(made, "x-1") == {"p2"}
    assert ready(made, "x")[1] == "InsufficientPods"
    assert [(p.pod, p.reason) for p in made.statuses["x"].problems] == [("p1", "EngineAsleep")]
    alone = replace(snapshot, pods=snapshot.pods[:1])
    assert ready(planned(alone), "x")[1] == "DecodePod"
    asleep = replace(snapshot, pods=snapshot.pods[1:2])
    assert ready(planned(asleep), "x")[1] == "EngineAsleep"


def test_on_a_sleeping_engine_all_stays_placed_and_does_not_count() -> None:
    snapshot = fleet([prefix("x", blocks=2, replicas="All")], pods(2), 10)
    before = obeyed(snapshot, planned(snapshot))
    state_ = before.sidecars["uid-p0"].state
    asleep = state_.model_copy(update={"engine": state_.engine.model_copy(update={"asleep": True})})
    slept = {**before.sidecars, "uid-p0": replace(before.sidecars["uid-p0"], state=asleep)}
    made = planned(replace(before, sidecars=slept))
    assert holders(made, "x-1") == {"p0", "p1"}
    assert ready(made, "x")[0] == "True"
    assert made.statuses["x"].desiredPods == 1


@pytest.mark.parametrize("change", [{"healthy": False}, {"asleep": True}])
@pytest.mark.parametrize(
    ("replicas", "count", "kept"),
    [("All", 3, True), ("100%", 3, True), ("67%", 3, True), ("34%", 2, True), ("33%", 1, False)],
)
def test_a_share_of_pods_counts_those_that_restart(
    change: dict[str, bool], replicas: str, count: int, kept: bool
) -> None:
    """An engine that restarts keeps it, unless the others are a large enough share of all."""
    snapshot = fleet([prefix("x", blocks=2, replicas=replicas)], pods(3), 10)
    before = obeyed(snapshot, planned(snapshot))
    held = holders(planned(before), "x-1")
    assert len(held) == count
    away = f"uid-{min(held)}"
    state_ = before.sidecars[away].state
    changed = state_.model_copy(update={"engine": state_.engine.model_copy(update=change)})
    sidecars = {**before.sidecars, away: replace(before.sidecars[away], state=changed)}
    made = planned(replace(before, sidecars=sidecars))
    assert (away.removeprefix("uid-") in holders(made, "x-1")) is kept
    assert len(holders(made, "x-1")) == count
    warm = kept and "healthy" in change
    assert made.statuses["x"].desiredPods == (count - 1 if kept and not warm else count)
    assert ready(made, "x")[0] == ("False" if warm or not kept else "True")
    again = planned(obeyed(replace(before, sidecars=sidecars), made))
    assert again.desired == made.desired


def edited(blocks: int, was: int, **fields: object) -> Prefix:
    """Return a prefix of ``blocks`` blocks whose text before had ``was`` and is still sent."""
    before = version("x", "0", blocks=was, superseded=NOW - timedelta(minutes=1))
    made = prefix("x", blocks=blocks, replicas="All", earlier=(before,))
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "now", "plan"),
    [
        # both fit
        (20, None, [("x-1", "Hard", False), ("x-0", "Hard", True)]),
        # they don't: the new one is warmed without a pin, the old one keeps its
        (15, None, [("x-1", "None", False), ("x-0", "Hard", True)]),
        # the new one would have no room alone: the old one stays
        (9, None, [("x-0", "Hard", True)]),
        # warm now: it takes the pin, the old one is kept as room is left
        (20, Phase.WARM, [("x-1", "Hard", False), ("x-0", "Hard", True)]),
        (15, Phase.WARM, [("x-1", "Hard", False), ("x-0", "None", True)]),
        # a new text that can't be warmed takes nothing away
        (15, Phase.FAILED, [("x-1", "None", False), ("x-0", "Hard", True)]),
        # warm, but others have the room by now
        (9, Phase.WARM, [("x-0", "Hard", True)]),
    ],
)
def test_an_edit_is_bounded_by_the_budget(
    budget: int, now: Phase | None, plan: list[tuple[str, str, bool]]
) -> None:
    reports = [state("x-0", 8), *([state("x-1", 10, now)] if now else [])]
    snapshot = fleet([edited(10, 8)], pods(1), budget)
    snapshot = replace(snapshot, sidecars={"uid-p0": sidecar(*reports, budget=budget)})
    made = planned(snapshot)
    assert told(made) == plan
    if ("x-1", "Hard", False) not in plan and ("x-1", "None", False) not in plan:
        assert ready(made, "x")[:2] == ("False", "BudgetExceeded")


def test_earlier_versions_stay_while_they_are_sent_and_only_where_they_are_warm() -> None:
    snapshot = fleet([edited(2, 2)], pods(2), 10)
    reports = {
        "uid-p0": sidecar(state("x-0", 2), state("x-1", 2), budget=10),
        "uid-p1": sidecar(state("x-1", 2), budget=10),
    }
    snapshot = replace(snapshot, sidecars=reports)
    made = planned(snapshot)
    assert told(made) == [("x-1", "Hard", False), ("x-0", "Hard", True)]
    assert told(made, "uid-p1") == [("x-1", "Hard", False)]
    assert made.wake_at == NOW + timedelta(minutes=9)
    assert [each.id for each in made.prefixes] == ["x-1", "x-0"]
    long_ago = version("x", "0", blocks=2, superseded=NOW - timedelta(hours=1))
    unused = replace(snapshot, prefixes=(edited(2, 2, earlier=(long_ago,)),))
    assert told(planned(unused)) == [("x-1", "Hard", False)]
    hit = state("x-0", 2).model_copy(update={"last_hit": NOW.timestamp() - 60})
    matched = {"uid-p0": sidecar(hit, state("x-1", 2), budget=10)}
    used = planned(replace(unused, sidecars=unused.sidecars | matched))
    assert told(used) == [("x-1", "Hard", False), ("x-0", "Hard", True)]


def test_routers_hear_of_each_version_its_text_and_its_tokens_as_reported_else_estimated() -> None:
    ready = {"uid-p0": sidecar(state("x-1", 3), budget=10)}
    desk = Planner()
    start = replace(fleet([edited(2, 2)], pods(1), 10), sizes={})
    for snapshot, tokens in (
        (start, 2 * BLOCK),
        (replace(start, sidecars=ready), 3 * BLOCK),
        (replace(start, sidecars=ready, sizes={"x-1": ((1, 53, ()),)}), 53),
    ):
        [route] = desk.plan(snapshot, NOW).prefixes
        assert (route.content_digest, route.tokens) == ("c-x-1", tokens)


def test_requests_are_rewritten_only_to_what_is_declared_now() -> None:
    old = version("x", "0", blocks=2, superseded=NOW)
    spec = {"normalizeRequests": True, "tenant": "acme"}
    both = prefix("x", spec=spec, version=version("x", blocks=2), earlier=(old,))
    reports = (state("x-1", 2), state("x-0", 2))
    snapshot = fleet([both, prefix("y", blocks=2)], pods(1), 10)
    warm = {"uid-p0": sidecar(*reports, budget=10, told=["x-0"])}
    made = planned(replace(snapshot, sidecars=warm))
    normalized = {each.id: each.normalize for each in made.prefixes}
    assert normalized == {"x-1": True, "x-0": False, "y-1": False}
    assert [each.owner for each in made.prefixes] == ["acme", "acme", ""]


@pytest.mark.parametrize("declared", [True, False])
def test_a_text_that_is_only_remembered_is_salted_if_it_may_be(declared: bool) -> None:
    salt = {"cacheSaltRef": {"name": "s", "key": "k"}} if declared else {}
    old = version("a", "0", blocks=8, readable=False, superseded=NOW)
    start = fleet([prefix("a", spec=salt, version=None, earlier=(old,))], pods(1), 20)
    warm = {"uid-p0": sidecar(state("a-0", 8), budget=20, told=["a-0"])}
    made = planned(replace(start, sidecars=warm))
    assert [(each.id, each.salted) for each in made.desired["uid-p0"]] == [("a-0", declared)]
    plain = ("a" * 64,)
    assert (made.endpoints[0].warm != plain) is declared
    assert (made.prefixes[0].token_digests != plain) is declared
    assert made.endpoints[0].warm == made.prefixes[0].token_digests


def test_salted_versions_share_nothing_with_others() -> None:
    salted = version("a", blocks=8, salt_digest="s")
    prefixes = [prefix("a", version=salted), prefix("b", blocks=8)]
    reports = [state(f"{name}-1", 8, head="abcdef") for name in "ab"]
    snapshot = fleet(prefixes, pods(1), 9)
    snapshot = replace(snapshot, sidecars={"uid-p0": sidecar(*reports, budget=9)})
    made = planned(snapshot)
    assert [(each.id, each.salted) for each in made.desired["uid-p0"]] == [("a-1", True)]
    plain = replace(snapshot, prefixes=(prefix("a", blocks=8), prefixes[1]))
    assert [each.pinning for each in planned(plain).desired["uid-p0"]] == [Pinning.HARD] * 2


def test_more_than_one_pod_is_weighed_before_somebody_goes() -> None:
    low, high = prefix("low", blocks=4, priority=-5), prefix("high", blocks=6, priority=5)
    middle, top = prefix("middle", blocks=10), prefix("top", blocks=8, priority=9)
    held = {
        "uid-p0": sidecar(state("low-1", 4), state("high-1", 6), budget=10),
        "uid-p1": sidecar(state("middle-1", 10), budget=10),
    }
    made = planned(fleet([low, high, middle, top], pods(2), 10, sidecars=held))
    assert holders(made, "high-1") == holders(made, "low-1") == {"p0"}
    assert holders(made, "top-1") == {"p1"}
    assert ready(made, "middle")[1] == "BudgetExceeded"


@pytest.mark.parametrize("prefills", [True, False])
def test_a_decode_pod_is_a_problem_only_where_no_other_pod_can_hold_it(prefills: bool) -> None:
    members = [pod("p0", decodes=True), *([pod("p1")] if prefills else [])]
    made = planned(fleet([prefix("x", blocks=4, replicas="All")], members, 10))
    problems = [(each.pod, each.reason) for each in made.statuses["x"].problems]
    assert problems == ([] if prefills else [("p0", "DecodePod")])
