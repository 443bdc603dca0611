"""Sizes that are only estimated: what is measured where, and that it comes to rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.fleet import Override, Prefix, Sidecar, Snapshot
from promptprefix.placement import Plan, Planner
from promptprefix.resource import OnIdle
from promptprefix.wire import Phase, Placement, PlacementState, SidecarState

from .fleets import (
    BLOCK,
    HEADS,
    NOW,
    budget,
    fleet,
    holders,
    obeyed,
    planned,
    pod,
    pods,
    prefix,
    ready,
    remembered,
    sidecar,
    state,
    told,
    union,
    version,
    versions_of,
)

UNKNOWN: Mapping[str, object] = {"sizes": {}}


def released(made: Plan, uid: str) -> list[tuple[str, OnIdle | None]]:
    return [(each.id, each.release) for each in made.desired[uid] if each.release is not None]


def measured(snapshot: Snapshot, uid: str, *reports: PlacementState) -> Snapshot:
    """Return the snapshot in which a pod has reported the sizes of what it was told to measure."""
    before = snapshot.sidecars[uid]
    ids = frozenset(each.id for each in reports if each.phase is Phase.RELEASED)
    kept = tuple(each for each in before.state.placements if each.id not in ids)
    after = Sidecar(
        before.state.model_copy(update={"placements": (*kept, *reports)}), before.told | ids, ids
    )
    sidecars = {**snapshot.sidecars, uid: after}
    return replace(snapshot, sidecars=sidecars, sizes=remembered(snapshot, sidecars))


def test_what_finds_no_room_by_estimate_is_measured_on_one_pod() -> None:
    start = fleet([prefix("x", blocks=12)], pods(3), 10, sizes={})
    made = planned(start)
    assert holders(made, "x-1") == set()
    (uid,) = [uid for uid in made.desired if released(made, uid)]
    assert released(made, uid) == [("x-1", OnIdle.KEEP)]
    assert made.statuses["x"].desiredPods == 1
    status, reason, message = ready(made, "x")
    assert (status, reason) == ("False", "BudgetExceeded")
    assert f"It takes 12 blocks (an estimate: it is being measured on {uid[4:]})" in message
    assert "x-1" not in made.kept
    assert not made.endpoints or all(not each.warm for each in made.endpoints)
    again = planned(measured(start, uid))
    assert again.desired == made.desired

    fits = planned(measured(start, uid, state("x-1", 9, Phase.RELEASED)))
    assert len(holders(fits, "x-1")) == 1
    assert not any(released(fits, each) for each in fits.desired)

    larger = measured(start, uid, state("x-1", 30, Phase.RELEASED))
    refused = planned(larger)
    assert set(refused.desired.values()) == {()}
    assert "It takes 30 blocks, but pins may take" in ready(refused, "x")[2]
    forgotten = planned(replace(larger, sidecars=start.sidecars))
    assert set(forgotten.desired.values()) == {()}


@pytest.mark.parametrize("reported", [True, False])
def test_an_older_one_that_is_measured_displaces_no_equal(reported: bool) -> None:
    held = prefix("held", blocks=8)
    start = fleet([held], pods(1), 10)
    before = obeyed(start, planned(start))
    older = replace(before, prefixes=(held, prefix("older", blocks=8, age=60)), sizes=before.sizes)
    made = planned(older)
    assert released(made, "uid-p0") == [("older-1", OnIdle.KEEP)]
    ids, resting = told(made.desired["uid-p0"])
    known = replace(older.sidecars["uid-p0"], told=ids, resting=resting)
    after = replace(older, sidecars={"uid-p0": known})
    if reported:
        after = measured(after, "uid-p0", state("older-1", 7, Phase.RELEASED))
    assert holders(planned(after), "held-1") == {"p0"}
    assert holders(planned(after), "older-1") == set()


@pytest.mark.parametrize(("blocks", "displaced"), [(5, False), (8, True)])
@pytest.mark.parametrize("replicas", [1, "All"])
def test_nobody_makes_room_for_an_estimate(
    replicas: int | str, blocks: int, displaced: bool
) -> None:
    weak = prefix("weak", blocks=5, replicas=replicas)
    start = fleet([weak], pods(1), 10)
    warm = obeyed(start, planned(start))
    strong = prefix("strong", blocks=8, replicas=replicas, priority=9)
    after = replace(warm, prefixes=(weak, strong))
    made = planned(after)
    assert holders(made, "weak-1") == {"p0"}
    assert released(made, "uid-p0") == [("strong-1", OnIdle.KEEP)]
    status, reason, message = ready(made, "strong")
    assert (status, reason) == ("False", "BudgetExceeded")
    assert "estimate" in message
    assert message.endswith("Prefixes of lower priority make room for it when its size is known.")
    ids, resting = told(made.desired["uid-p0"])
    unread = replace(after.sidecars["uid-p0"], told=ids, resting=resting)
    assert planned(replace(after, sidecars={"uid-p0": unread})).desired == made.desired
    known = planned(measured(after, "uid-p0", state("strong-1", blocks, Phase.RELEASED)))
    assert holders(known, "strong-1") == {"p0"}
    assert holders(known, "weak-1") == (set() if displaced else {"p0"})


def test_a_shared_head_is_found_by_measuring() -> None:
    red, green = prefix("red", blocks=8, age=1), prefix("green", blocks=8)
    start = fleet([red, green], pods(1), 10, sizes={})
    warm = measured(start, "uid-p0", state("red-1", 8, head="abcdef"))
    assert released(planned(warm), "uid-p0") == [("green-1", OnIdle.KEEP)]
    known = measured(warm, "uid-p0", state("green-1", 8, Phase.RELEASED, head="abcdef"))
    made = planned(known)
    assert holders(made, "red-1") == holders(made, "green-1") == {"p0"}
    assert ready(made, "green")[1] != "BudgetExceeded"


def test_a_new_text_without_room_is_measured_beside_the_one_before() -> None:
    old = version("x", "0", blocks=8, superseded=NOW - timedelta(minutes=1))
    start = fleet([prefix("x", blocks=20, earlier=(old,))], pods(1), 10, sizes={})
    warm = measured(start, "uid-p0", state("x-0", 8))
    made = planned(warm)
    assert released(made, "uid-p0") == [("x-1", OnIdle.KEEP)]
    assert holders(made, "x-0") == {"p0"}
    assert ready(made, "x")[:2] == ("False", "BudgetExceeded")
    known = planned(measured(warm, "uid-p0", state("x-1", 9, Phase.RELEASED)))
    assert holders(known, "x-1") == holders(known, "x-0") == {"p0"}
    large = planned(measured(warm, "uid-p0", state("x-1", 11, Phase.RELEASED)))
    assert [each.id for each in large.desired["uid-p0"]] == ["x-0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": version("x", blocks=12, readable=False)},
        {"unpin": Override()},
        {"spec": None},
        {"deleting": True},
    ],
)
def test_what_is_not_to_be_held_is_not_measured(changes: Mapping[str, object]) -> None:
    made = planned(fleet([replace(prefix("x", blocks=12), **changes)], pods(1), 10, sizes={}))  # type: ignore[arg-type]
    assert made.desired["uid-p0"] == ()


def test_a_size_of_another_block_size_is_no_measure() -> None:
    start = fleet([prefix("x", blocks=12)], pods(2), 10, sizes={"x-1": ((32, 12 * BLOCK, ()),)})
    assert sum(bool(released(planned(start), uid)) for uid in start.sidecars) == 1


class Fleet:
    """Pods that obey, and find real sizes only in what they are told."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.planner = Planner()
        prefixes = [self._prefix(index) for index in range(rng.randint(1, 12))]
        members = [pod(f"p{index}", zone=f"z{index % 2}") for index in range(rng.randint(1, 4))]
        self.snapshot = fleet(prefixes, members, 0, sizes={})
        sidecars = {each.uid: sidecar(budget=rng.randint(4, 40)) for each in members}
        self.snapshot = replace(self.snapshot, sidecars=sidecars)
        self.real = {each.id: self._real(each.id, each.estimated_tokens) for each in
                     versions_of(prefixes)}  # fmt: skip
        self.desired: Mapping[str, Sequence[Placement]] = {}

    def _prefix(self, index: int) -> Prefix:
        rng = self.rng
        return prefix(
            f"x{index}",
            blocks=rng.randint(1, 24),
            replicas=rng.choice([1, 1, 2, "All"]),
            priority=rng.choice([0, 0, 1]),
            age=rng.randint(0, 3),
            unpin=Override() if rng.random() < 0.1 else None,
        )

    def _real(self, id_: str, estimated: int) -> PlacementState:
        blocks = max(1, round(estimated / BLOCK * self.rng.choice([1 / 3, 1 / 2, 1, 2, 3])))
        return state(id_, blocks, head=self.rng.choice(HEADS))

    def round(self) -> bool:
        """Plan, and let the pods act; return whether the plan was another than before."""
        made = self.planner.plan(self.snapshot, NOW)
        self.made = made
        changed = made.desired != self.desired
        self.desired = made.desired
        sidecars = {uid: self._acted(uid, each) for uid, each in self.snapshot.sidecars.items()}
        self.snapshot = replace(
            self.snapshot, sidecars=sidecars, sizes=remembered(self.snapshot, sidecars)
        )
        return changed

    def _acted(self, uid: str, before: Sidecar) -> Sidecar:
        """A pod first asks how large a text is, tells so, and warms it when it is still told to."""
        known = {each.id for each in before.state.placements}
        placements = []
        for each in self.made.desired[uid]:
            real, phase = self.real[each.id], Phase.PENDING
            if each.release is not None:
                phase = Phase.RELEASED
            elif each.id in known:
                phase = Phase.WARM
            pinned = real.tokens if phase is Phase.WARM else 0
            placements.append(
                real.model_copy(
                    update={"phase": phase, "pinned_tokens": pinned, "released": each.release}
                )
            )
        made = SidecarState(engine=before.state.engine, placements=tuple(placements))
        return Sidecar(made, *told(self.made.desired[uid]))

    def used(self, uid: str) -> int:
        """Blocks that are pinned on a pod."""
        reports = self.snapshot.sidecars[uid].state.placements
        return union((e.tokens // BLOCK, e.heads) for e in reports if e.pinned_tokens)


ROUNDS = 4


@settings(max_examples=150, deadline=None, phases=(Stage.explicit, Stage.generate))
@given(st.integers(0, 2**32))
def test_sizes_that_are_found_out_late_come_to_rest(seed: int) -> None:
    played = Fleet(Random(seed))  # noqa: S311 - no secret
    rounds = 0
    while played.round():
        rounds += 1
        assert rounds <= ROUNDS
        for uid in played.desired:
            assert played.used(uid) <= budget(played.snapshot, uid)
    for _ in range(3):
        assert not played.round()
    for each in played.snapshot.prefixes:
        if each.unpin is None and not holders(played.made, f"{each.uid}-1"):
            assert f"{each.uid}-1" in played.snapshot.sizes
            status, reason, message = ready(played.made, each.uid)
            assert (status, reason) == ("False", "BudgetExceeded")
            assert "estimate" not in message
    assert played.made.desired == planned(played.snapshot).desired


@pytest.mark.parametrize("at", ["p0", "p1", "p2"])
def test_it_goes_on_being_measured_where_it_was_begun(at: str) -> None:
    start = fleet([prefix("x", blocks=30)], pods(3), 20, sizes={})
    begun = {**start.sidecars, f"uid-{at}": sidecar(budget=20, told=["x-1"])}
    made = planned(replace(start, sidecars=begun))
    assert [uid for uid, placements in made.desired.items() if placements] == [f"uid-{at}"]
