"""Which text is in force: bursts, returns, restarts and what is forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from promptprefix.fleet import Prefix, Retention, Version, placement_id
from promptprefix.history import LONGEST_WAIT, QUIET, History, rebuilt
from promptprefix.resource import VersionStatus
from promptprefix.versions import (
    EARLIER_KEPT,
    MATCH_LAG,
    UNTOLD,
    kept_until,
    retained,
    version_statuses,
)

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
RETENTION = Retention(idle=timedelta(minutes=10), max_age=timedelta(hours=24))


def version(text: str, model: str = "m", salt: str = "") -> Version:
    return Version(placement_id("u", model, text, salt), model, text, text, salt_digest=salt)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def edited(*edits: tuple[float, str]) -> History:
    """Return the history after these texts were declared at these seconds."""
    history = History()
    for seconds, text in edits:
        history = history.declare(version(text), at(seconds))
    return history


def texts(history: History) -> str:
    """Return the texts, newest first; one that waits stands in front, in brackets."""
    waits = f"({history.pending.version.content_digest})" if history.pending else ""
    return waits + "".join(each.content_digest for each in history.versions)


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        ([(0, "a")], "a"),
        ([(0, "a"), (9, "b")], "(b)a"),
        ([(0, "a"), (9, "b"), (10.9, "b")], "(b)a"),
        ([(0, "a"), (9, "b"), (11, "b")], "ba"),
        ([(0, "a"), (9, "b"), (10, "c"), (11, "c")], "(c)a"),
        ([(0, "a"), (9, "b"), (10, "c"), (12, "c")], "ca"),
        ([(0, "a"), (9, "b"), (10, "a"), (99, "a")], "a"),
        ([(0, "a"), (9, "b"), (11, "b"), (11.1, "a")], "ab"),
        ([(0, "a"), (9, "b"), (11, "b"), (12, "c"), (12.5, "a")], "ab"),
        ([(0, "a"), (9, "b"), (11, "b"), (12, "a"), (13, "b")], "ba"),
        ([(0, "a"), *((10 + n, f"{n}") for n in range(10))], "(9)a"),
        ([(0, "a"), *((10 + n, "bcdefghijkl"[n]) for n in range(11))], "la"),
        ([(0, "a"), (9, "b"), (99, "c")], "ca"),
    ],
)
def test_a_burst_is_one_version_and_a_return_is_at_once(
    edits: list[tuple[float, str]], found: str
) -> None:
    assert texts(edited(*edits)) == found


def test_times_say_when_a_text_came_and_when_it_went() -> None:
    history = edited((0, "a"), (9, "b"), (12, "b"), (20, "a"))
    [a, b] = history.versions
    assert (a.since, a.superseded) == (at(0), None), "in force again"
    assert (b.since, b.superseded) == (at(9), at(20))


def test_an_edit_is_due_when_it_is_quiet_or_after_the_longest_wait() -> None:
    history = edited((0, "a"), (10, "b"))
    assert history.pending is not None
    assert history.pending.due == at(10) + QUIET
    history = edited((0, "a"), (10, "b"), (11, "c"), (12, "d"), (13, "e"), (14, "f"), (15, "g"))
    history = history.declare(version("h"), at(16)).declare(version("i"), at(17))
    history = history.declare(version("j"), at(18.9))
    assert history.pending is not None
    assert history.pending.due == at(10) + LONGEST_WAIT
    assert history.withdraw().pending is None
    assert history.withdraw().versions == history.versions


def test_another_model_does_not_wait() -> None:
    history = edited((0, "a")).declare(version("a", "n"), at(1))
    assert [each.model for each in history.versions] == ["n", "m"]


def test_nothing_new_is_the_same_object() -> None:
    history = edited((0, "a"), (9, "b"), (12, "b"))
    waiting = history.declare(version("c"), at(20))
    assert history.declare(version("b"), at(30)) is history
    assert waiting.declare(version("c"), at(21)) is waiting
    assert history.withdraw() is history
    assert history.prune((), at(21), RETENTION) is history
    assert history.matched({"other": at(1)}) is history
    matched = history.matched({history.versions[1].id: at(1)})
    assert matched.versions[1].last_matched == at(1)
    assert matched.matched({history.versions[1].id: at(0.5)}) is matched, "never backwards"


def test_what_nobody_matches_goes_but_not_what_a_pod_is_told_to_hold() -> None:
    history = edited((0, "a"), (9, "b"), (11, "b"), (20, "c"), (22, "c"))
    a, b = (version(text).id for text in "ab")
    end = at(11) + RETENTION.idle
    assert texts(history.prune((), end - timedelta(seconds=1), RETENTION)) == "cba"
    assert texts(history.prune((), end, RETENTION)) == "cb"
    assert texts(history.prune({a}, at(9_999), RETENTION)) == "ca"
    matched = history.matched({a: at(500)})
    assert texts(matched.prune((), at(1_000), RETENTION)) == "ca"
    assert texts(matched.prune({b}, at(1_000), RETENTION)) == "cba"


@pytest.mark.parametrize(
    ("placed", "matched", "found"),
    [
        ("", {}, "dcb"),
        ("a", {}, "dca"),
        ("ab", {}, "dba"),
        ("abc", {}, "dcb"),
        ("abc", {"a": 90}, "dca"),
    ],
)
def test_too_many_lose_first_what_no_pod_holds_then_what_was_least_used(
    placed: str, matched: dict[str, float], found: str
) -> None:
    edits = [(0.0, "a")]
    for seconds, text in ((10, "b"), (20, "c"), (30, "d")):
        edits += [(seconds, text), (seconds + 2, text)]
    history = edited(*edits).matched({version(t).id: at(s) for t, s in matched.items()})
    ids = {version(text).id for text in placed}
    assert texts(history.prune(ids, at(95), RETENTION)) == found


def test_what_is_the_only_warm_text_of_a_pod_stays_beyond_the_number() -> None:
    edits = [(0.0, "a")]
    for seconds, text in ((10, "b"), (20, "c"), (30, "d"), (40, "e")):
        edits += [(seconds, text), (seconds + 2, text)]
    history, ids = edited(*edits), {text: version(text).id for text in "abcd"}
    every = set(ids.values())
    assert texts(history.prune(every, at(50), RETENTION, lambda: (ids["a"],))) == "eda"
    assert texts(history.prune(every, at(50), RETENTION, lambda: every)) == "edcba"


def written(history: History) -> tuple[Version, ...]:
    """Return the versions that an operator knows again after a restart."""
    prefix = Prefix("u", "ml", "a", 1, None, history.current, earlier=history.earlier)
    warm = {each.id: 1 for each in history.versions}
    return rebuilt(version_statuses(prefix, warm, {}, at(500)), "u", "m", at(500)).versions


def test_a_restart_forgets_nothing_but_the_texts() -> None:
    history = edited((0, "a"), (9, "b"), (11, "b")).matched({version("a").id: at(3)})
    [b, a] = written(history)
    for before, after in zip(history.versions, (b, a), strict=True):
        assert replace(after, fingerprint=before.fingerprint, readable=True, used=None) == before
        assert not after.readable


def test_after_a_restart_an_edit_does_not_wait_and_a_known_text_is_readable_again() -> None:
    history = History(*(lambda found: (found[0], found[1:]))(written(edited((0, "a")))))
    edit = history.declare(version("b"), at(600))
    assert texts(edit) == "ba"
    assert [each.readable for each in edit.versions] == [True, False]
    assert edit.earlier[0].superseded == at(600)
    back = edit.declare(version("a"), at(601))
    assert texts(back) == "ab"
    assert [each.readable for each in back.versions] == [True, True]
    assert history.declare(version("a"), at(600)).versions == edited((0, "a")).versions


def test_texts_of_another_model_or_salt_stay_without_and_salts_are_found_again() -> None:
    salted = rebuilt(
        version_statuses(
            Prefix("u", "ml", "a", 1, None, version("a", salt="s"), earlier=()), {}, {}, START
        ),
        "u",
        "m",
        START,
    )
    kept = salted.declare(version("b", salt="s"), at(1))
    assert [each.salt_digest for each in kept.versions] == ["s", "s"]
    for other in (version("b", salt="other"), version("b"), version("b", "n", "s")):
        edit = salted.declare(other, at(1))
        assert texts(edit) == "ba"
        [lost] = edit.earlier
        assert (lost.id, lost.superseded) == (version("a", salt="s").id, at(1))
        assert (lost.model, lost.salt_digest, lost.readable) == ("", "", False)
        assert retained(lost, None, at(600), RETENTION)
        assert edit.prune((), at(601), RETENTION).earlier == ()
        back = edit.declare(version("a", salt="s"), at(2))
        assert texts(back) == "ab"
        assert back.current == replace(version("a", salt="s"), since=START)


def test_a_status_without_a_version_in_force_and_an_empty_one_are_read() -> None:
    assert rebuilt((), "u", "m", START) == History()
    prefix = Prefix(
        "u", "ml", "a", 1, None, None, earlier=(replace(version("a"), superseded=START),)
    )
    found = rebuilt(version_statuses(prefix, {version("a").id: 1}, {}, START), "u", "m", at(9))
    assert found.current is None
    assert texts(found.declare(version("b"), at(10))) == "ba"


@pytest.mark.parametrize(("now", "found"), [(150, 150), (1_000, 400), (50, 50)])
def test_a_match_may_have_been_later_than_it_was_written(now: float, found: float) -> None:
    history = edited((0, "a")).matched({version("a").id: at(100)})
    prefix = Prefix("u", "ml", "a", 1, None, history.current)
    statuses = version_statuses(prefix, {}, {}, at(200))
    [seen] = rebuilt(statuses, "u", "m", at(now), timedelta(seconds=300)).versions
    assert seen.used == at(found)
    assert seen.last_matched == at(min(100, now))
    gone = replace(seen, superseded=at(0))
    assert kept_until(gone, None, RETENTION) == at(found) + UNTOLD + RETENTION.idle
    [again] = History(seen).declare(version("a"), at(now)).versions
    assert (again.used, again.last_matched) == (seen.used, seen.last_matched)


def test_restarts_do_not_move_what_is_written_of_matches() -> None:
    history, warm = edited((0, "a")).matched({version("a").id: at(100)}), 0
    for now in range(500, 2_000, 60):
        prefix = Prefix("u", "ml", "a", 1, None, history.current)
        warm = 1 - warm  # every restart warms it again
        statuses = version_statuses(prefix, {version("a").id: warm}, {}, at(now))
        assert [each.lastMatched for each in statuses] == [at(100)]
        history = rebuilt(statuses, "u", "m", at(now), MATCH_LAG)


@pytest.mark.parametrize("lag", [0, 299])
def test_times_to_come_are_read_as_the_present(lag: float) -> None:
    never = datetime.max.replace(tzinfo=UTC)
    statuses = [
        VersionStatus(id=id_, fingerprint="f", since=never, superseded=gone, lastMatched=never)
        for id_, gone in (("b", None), ("a", never))
    ]
    [b, a] = rebuilt(statuses, "u", "m", at(9), timedelta(seconds=lag)).versions
    assert (b.since, b.superseded, b.last_matched) == (at(9), None, at(9))
    assert (a.since, a.superseded, a.last_matched) == (at(9), at(9), at(9))


class Life(RuleBasedStateMachine):
    """Edits, matches, restarts and pods that hold what they were told to, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.history = History()
        self.declared = ""
        self.quiet_since = START
        self.held: set[str] = set()

    @rule(seconds=st.floats(0, 30) | st.floats(0, 900))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.step()

    @rule(text=st.sampled_from("abcdef"))
    def edit(self, text: str) -> None:
        if text != self.declared:
            self.declared, self.quiet_since = text, self.now
        self.step()

    @precondition(lambda self: self.history.versions)
    @rule(index=st.integers(0, 3))
    def match(self, index: int) -> None:
        versions = self.history.versions
        self.history = self.history.matched({versions[index % len(versions)].id: self.now})

    @precondition(lambda self: self.history.versions)
    @rule(index=st.integers(0, 3))
    def hold(self, index: int) -> None:
        self.held ^= {self.history.versions[index % len(self.history.versions)].id}

    @precondition(lambda self: self.history.current)
    @rule()
    def restart(self) -> None:
        before = self.history
        prefix = Prefix("u", "ml", "a", 1, None, before.current, earlier=before.earlier)
        warm = {each.id: 1 for each in before.versions}
        self.history = rebuilt(version_statuses(prefix, warm, {}, self.now), "u", "m", self.now)
        assert [v.id for v in self.history.versions] == [v.id for v in before.versions]
        self.step()

    def step(self) -> None:
        if self.declared:
            before = self.history.current
            self.history = self.history.declare(version(self.declared), self.now)
            if before is not None and before.id != version(self.declared).id:
                assert before.id in {each.id for each in self.history.versions}
        before_prune = self.history.earlier
        self.history = self.history.prune(self.held, self.now, RETENTION)
        gone = [each for each in before_prune if each not in self.history.earlier]
        for each in gone:
            end = kept_until(each, None, RETENTION)
            over = len(before_prune) > EARLIER_KEPT
            assert over or (each.id not in self.held and end is not None and end <= self.now)

    @invariant()
    def bounded_and_of_one_kind(self) -> None:
        ids = [each.id for each in self.history.versions]
        assert len(ids) == len(set(ids)) <= 1 + EARLIER_KEPT
        assert all(each.superseded is not None for each in self.history.earlier)
        if self.history.current is not None:
            assert self.history.current.superseded is None

    @invariant()
    def the_declared_text_is_in_force_in_time(self) -> None:
        current = self.history.current
        if self.declared and self.now - self.quiet_since >= QUIET:
            self.step()
            current = self.history.current
            assert current is not None
            assert current.id == version(self.declared).id
        if self.history.pending is not None:
            assert self.now < self.history.pending.due


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25)


@given(
    st.lists(st.tuples(st.floats(0.1, 1.9), st.sampled_from("bcdefgh")), min_size=1, max_size=40)
)
def test_a_burst_makes_at_most_one_version_per_longest_wait(
    steps: list[tuple[float, str]],
) -> None:
    history, now, seen = edited((0, "a")), START, 0
    edits = [
        step for step, last in zip(steps, [(0.0, "a"), *steps], strict=False) if step[1] != last[1]
    ]
    for seconds, text in edits:
        now += timedelta(seconds=seconds)
        before = history.current
        known = {each.id for each in history.versions}
        history = history.declare(version(text), now).prune((), now, RETENTION)
        if history.current != before and history.current and history.current.id not in known:
            seen += 1
    assert seen <= (now - START) / LONGEST_WAIT + 1
