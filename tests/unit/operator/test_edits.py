"""Edits through the whole loop: what pods hold whatever becomes of the new text on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptprefix.fleet import DEFAULT_RETENTION, Snapshot
from promptprefix.history import QUIET
from promptprefix.versions import MATCH_LAG, MATCH_STEP, WRITE_STEP, only_warm
from promptprefix.wire import (
    MATCH_STEP_S,
    Phase,
)
from tests.unit.operator.edit_bench import IDLE_S, ONE, PODS, THREE, TWO, Bench, id_of


def test_an_edit_keeps_the_old_text_until_nobody_sends_it() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.rollout("two")
    assert bench.listed == [(TWO, 2), (ONE, 2)]
    assert bench.routed == [TWO, ONE]
    assert [bench.warm(pod) for pod in PODS] == [{ONE, TWO}] * 2
    assert {each.retained for each in bench.told("p0") if each.id == ONE} == {True}
    bench.settle(IDLE_S - 10)
    bench.match("one")
    bench.settle(IDLE_S - 10)
    assert bench.routed == [TWO, ONE]
    bench.settle(9 + MATCH_STEP_S)
    assert bench.routed == [TWO, ONE], "later matches are told within a step"
    bench.settle(1)
    assert bench.listed == [(TWO, 2)]
    assert bench.routed == [TWO]
    assert [bench.warm(pod) for pod in PODS] == [{TWO}] * 2


def test_however_often_it_is_matched_an_old_text_goes_after_the_longest_time() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.rollout("two")
    while bench.seconds < DEFAULT_RETENTION.max_age.total_seconds():
        bench.match("one")
        bench.settle(300)
    assert bench.routed == [TWO]


def test_a_return_to_a_held_text_is_ready_with_the_next_plan() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.rollout("two")
    bench.edit("one")
    bench.step()
    assert bench.status is not None
    assert bench.status.observedGeneration == 3
    assert (bench.status.warm, bench.listed) == ("2/2", [(ONE, 2), (TWO, 2)])


def test_a_failed_warm_up_takes_nothing_away_for_ever() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.spoilt = {"p0"}
    bench.rollout("two")
    bench.settle(3 * DEFAULT_RETENTION.max_age.total_seconds())
    assert bench.warm("p0") == {ONE}
    assert bench.warm("p1") == {TWO}
    assert bench.listed == [(TWO, 1), (ONE, 1)]
    bench.restart()
    bench.settle()
    bench.settle(100)
    assert bench.warm("p0") == {ONE}
    for text in ("three", "four", "five"):
        bench.rollout(text)
    assert bench.warm("p0") == {ONE}
    bench.spoilt = set()
    bench.held["p0"] = tuple(each for each in bench.held["p0"] if each.id == ONE)
    bench.settle()
    assert bench.warm("p0") == {id_of("five")}, "its time was over long ago"


def test_a_clock_that_is_set_back_delays_no_edit_and_keeps_no_text_for_longer() -> None:
    bench = Bench()
    bench.ahead = 86_400.0
    bench.rollout("one")
    bench.edit("two")
    bench.step()
    bench.ahead = 0.0
    bench.settle()
    bench.settle(QUIET.total_seconds())
    assert bench.listed == [(TWO, 2), (ONE, 2)]

    bench.ahead = 3_600.0
    bench.match("one")
    bench.settle(1)
    bench.ahead = 0.0
    bench.settle(1)
    bench.settle(IDLE_S + MATCH_STEP_S - 1)
    assert bench.listed == [(TWO, 2), (ONE, 2)]
    bench.settle(1)
    assert bench.listed == [(TWO, 2)]


def test_the_reports_are_looked_through_once_for_all_texts_that_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, looks = Bench(), 0

    def counted(snapshot: Snapshot) -> Mapping[tuple[str, str], frozenset[str]]:
        nonlocal looks
        looks += 1
        return only_warm(snapshot)

    monkeypatch.setattr("promptprefix_operator.controller.only_warm", counted)
    for text in ("one", "two", "three", "four"):
        bench.edit(text)
        for uid in ("v", "w"):
            metadata = {"uid": uid, "namespace": "ml", "name": uid, "generation": bench.generation}
            bench.cluster.see_resource({"metadata": metadata, "spec": bench.spec})
        bench.settle()
        assert looks == 0
        bench.seconds += QUIET.total_seconds()
        if text == "four":
            bench.step()
            assert looks == 1
        else:
            bench.settle()


def test_a_pod_that_is_away_finds_its_text_again() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.edit("two")
    for seconds in (0, 2, 60, IDLE_S):
        bench.seconds += seconds
        bench.step(["p1"])
        bench.step(["p1"])
    assert bench.warm("p1") == {TWO}
    assert bench.routed == [TWO], "nobody that is there holds the text before"
    bench.step()
    assert {each.id for each in bench.told("p0")} == {ONE, TWO}


def test_an_operator_that_restarts_in_the_middle_of_an_edit_remembers_the_text_before() -> None:
    bench = Bench()
    bench.rollout("one")
    bench.spoilt = set(PODS)
    bench.rollout("two")
    bench.edit("three")
    bench.restart()
    bench.step([])
    bench.step(["p0"])
    assert ONE in {each.id for each in bench.told("p0")}
    bench.settle()
    assert [bench.warm(pod) for pod in PODS] == [{ONE}] * 2
    assert bench.listed[0] == (THREE, 0)
    assert (ONE, 2) in bench.listed
    bench.spoilt = set()
    bench.held = {pod: tuple(e for e in bench.held[pod] if e.id == ONE) for pod in PODS}
    bench.settle()
    assert bench.listed[0] == (THREE, 2)


@pytest.mark.parametrize("matched", [False, True])
def test_a_failover_over_an_unchanged_fleet_writes_nothing(matched: bool) -> None:
    bench = Bench()
    bench.rollout("one")
    bench.rollout("two")
    if matched:
        bench.match("one")
        bench.match("two")
    bench.settle(30)
    assert bench.listed == [(TWO, 2), (ONE, 2)]
    before, writes = bench.status, bench.writes
    bench.seconds += 16
    bench.restart()
    for pods in ((), ("p0",), ("p0",), PODS):
        bench.step(pods)
        bench.seconds += 2
    bench.settle(11)
    bench.settle(30)
    assert (bench.status, bench.writes) == (before, writes)


@pytest.mark.parametrize(
    ("gap", "longest"), [(7, MATCH_STEP + timedelta(minutes=1)), (295, MATCH_LAG)]
)
def test_what_is_written_of_matches_lags_by_no_more_than_restarts_reckon_with(
    gap: int, longest: timedelta
) -> None:
    bench = Bench()
    bench.rollout("one")
    last, writes, begin = bench.now, bench.writes, bench.seconds
    for second in range(4_000):
        bench.seconds += 1
        if second % gap == 0:
            bench.match("one")
            last = bench.now
        if second % 5 == 0:
            bench.step()
        assert bench.status is not None
        [written] = bench.status.versions
        assert written.lastMatched is None or last - written.lastMatched <= longest
    assert bench.writes - writes <= 1 + (bench.seconds - begin) / WRITE_STEP.total_seconds()


def test_a_transition_is_written_with_two_writes_and_rest_with_none() -> None:
    bench = Bench()
    bench.rollout("one")
    assert bench.writes <= 2
    for number in range(5):
        bench.writes = 0
        bench.edit(f"text {number}")
        bench.step()
        bench.seconds += 1
    assert bench.writes == 0, "an edit that waits"
    bench.settle(QUIET.total_seconds())
    assert bench.writes <= 2
    bench.writes = 0
    for _ in range(100):
        bench.match("text 4")
        bench.match("one")
        bench.settle(3)
    assert bench.writes <= 2, "the first match, and one step"
    bench.writes = 0
    bench.settle(MATCH_LAG.total_seconds() + IDLE_S)
    assert bench.writes <= 2, "the last match, and the end of the old text"
    bench.writes = 0
    bench.settle(10 * IDLE_S)
    assert bench.writes == 0


class Edits(RuleBasedStateMachine):
    """Edits, failures, absences, restarts, matches and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.ever: dict[str, bool] = dict.fromkeys(PODS, False)
        self.unwritten = 0

    @rule(text=st.sampled_from(["a", "b", "c", "d", "e"]))
    def edit(self, text: str) -> None:
        self.bench.edit(text)
        self._step(PODS)

    @rule(pods=st.sets(st.sampled_from(PODS)))
    def spoil(self, pods: set[str]) -> None:
        self.bench.spoilt = pods
        for pod in PODS:
            kept = tuple(e for e in self.bench.held[pod] if e.phase is Phase.WARM)
            self.bench.held[pod] = kept  # what failed is tried again

    @rule(text=st.sampled_from(["a", "b", "c", "d", "e"]))
    def match(self, text: str) -> None:
        self.bench.match(text)

    @rule(seconds=st.sampled_from([1.0, 3.0, 40.0, 650.0]), pods=st.sets(st.sampled_from(PODS)))
    def wait(self, seconds: float, pods: set[str]) -> None:
        self.bench.seconds += seconds
        self._step(pods)

    @rule()
    def restart(self) -> None:
        held = {id_ for pod in PODS for id_ in self.bench.warm(pod)}
        status = self.bench.status
        if status is not None and held <= {f"u-{each.id}" for each in status.versions}:
            self.bench.restart()

    def _step(self, pods: Collection[str]) -> None:
        for _ in range(2):
            self.bench.step(sorted(pods))
        for pod in PODS:
            warm = bool(self.bench.warm(pod))
            assert warm or not self.ever[pod], "a pod that was warm is cold"
            self.ever[pod] = warm

    @invariant()
    def bounded(self) -> None:
        if self.bench.status is not None:
            assert len(self.bench.status.versions) <= 3


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=40, stateful_step_count=30)
