"""Counting matches: which versions, how many, and what the operator knows of them."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.wire import Match
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.matching.matcher import Matcher, MatchKind, Question
from promptprefix_router.matching.memo import FingerprintMemo

from .samples import chat, prefix, routes


@pytest.fixture
def tally() -> MatchTally:
    ticks = count(100)
    made = MatchTally(lambda: float(next(ticks)))
    made.retain({"u-1", "u-2"})
    return made


def test_matches_are_counted_until_they_are_told(tally: MatchTally) -> None:
    assert tally.untold(9) == ()
    tally.note(("u-1",))
    tally.note(("u-1", "u-2"))
    told = tally.untold(9)
    assert set(told) == {
        Match(id="u-1", count=2, at=101.0),
        Match(id="u-2", count=1, at=101.0),
    }
    tally.note(("u-1",))
    tally.tell(told)
    assert tally.untold(9) == (Match(id="u-1", count=1, at=102.0),), "what came meanwhile"
    assert tally.untold(0) == ()


def test_a_new_leader_is_told_the_latest_of_all_that_ever_matched(tally: MatchTally) -> None:
    tally.note(("u-1",))
    tally.tell(tally.untold(9))
    tally.repeat()
    assert tally.untold(9) == (Match(id="u-1", count=0, at=100.0),)


def test_versions_that_leave_the_table_are_forgotten_and_unknown_ones_not_counted(
    tally: MatchTally,
) -> None:
    tally.note(("u-1", "u-3"))
    tally.retain({"u-2", "u-3"})
    assert (len(tally), tally.untold(9)) == (2, ())
    tally.tell((Match(id="u-1", count=1, at=100.0),))
    tally.note(("u-2",))
    tally.retain({"u-2"})
    assert [match.id for match in tally.untold(9)] == ["u-2"]


@pytest.mark.parametrize(
    ("since", "untold"), [((), ()), (("u-1",), (Match(id="u-1", count=0, at=102.0),))]
)
def test_a_version_that_came_back_while_it_was_told_counts_anew(
    tally: MatchTally, since: tuple[str, ...], untold: tuple[Match, ...]
) -> None:
    tally.note(("u-1",))
    tally.note(("u-1",))
    told = tally.untold(9)
    tally.retain(())
    tally.retain({"u-1"})
    tally.note(since)
    tally.tell(told)
    assert tally.untold(9) == untold


@given(st.lists(st.sampled_from(["note", "tell", "lose", "repeat"]), max_size=30))
def test_no_match_is_lost_and_none_counts_twice(steps: list[str]) -> None:
    ticks = count(1)
    tally = MatchTally(lambda: float(next(ticks)))
    tally.retain({"u-1"})
    noted = told = 0
    latest = known = 0.0
    for step in steps:
        if step == "note":
            tally.note(("u-1",))
            noted, latest = noted + 1, latest + 1
        elif step == "tell":
            for match in tally.untold(9):
                told, known = told + match.count, match.at
            tally.tell(tally.untold(9))
        elif step == "repeat":
            tally.repeat()
            known = 0.0
        else:
            tally.untold(9)
    for match in tally.untold(9):
        told, known = told + match.count, match.at
    assert (told, known) == (noted, latest)


def test_requests_count_for_the_versions_that_they_carry() -> None:
    old = prefix(id="u-old", fingerprint="pp1:sha256:other", token_digests=("d0",))
    table = routes(prefixes=(prefix(id="u-new"), old, prefix("q", id="v-1"), prefix("r")))
    matcher = Matcher(FingerprintMemo(4))
    assert table.ids == {"u-new", "u-old", "v-1"}
    found = matcher.match(Question("/v1/chat/completions", chat()), table)
    assert (found.kind, found.ids) == (MatchKind.FINGERPRINT, ("u-new", "v-1", ""))
    named = matcher.match(Question("/v1/completions", b'{"model":"m"}', prefix_name="p"), table)
    assert (named.kind, named.ids) == (MatchKind.HEADER, ("u-new",))
    none = matcher.match(Question("/v1/completions", b'{"model":"m"}'), table)
    assert none.ids == ()
