"""Matches that routers tell of: whose they are, what is shown of them, and who is woken."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.demand import let_go
from promptprefix.fleet import DEFAULT_RETENTION, Prefix, Version
from promptprefix.resource import Condition, PromptPrefixSpec
from promptprefix.versions import MATCH_STEP
from promptprefix.wire import Match, MatchReport
from promptprefix_operator.matches import Matches
from promptprefix_operator.routers import ROUTER_SECONDS, Routers

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def prefix(uid: str = "u", *, ttl: str | None = None, **changes: Any) -> Prefix:
    spec = {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "v"}}},
        "content": {"inline": {"systemInstructions": "x"}},
        "idleTTL": ttl,
    }
    current, old = (Version(f"{uid}-{name}", "m", "f", "c") for name in ("new", "old"))
    made = Prefix(uid, "ml", uid, 1, PromptPrefixSpec.model_validate(spec), current, earlier=(old,))
    return replace(made, **changes)


class Desk:
    def __init__(self, *prefixes: Prefix) -> None:
        self.seconds = 0.0
        self.wakes = 0
        self.routers = Routers(lambda: self.seconds, self._wake)
        self.matches = Matches(lambda: self.now, self.routers, self._wake)
        self.matches.follow(prefixes)

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def take(self, *ids: str, age: float = 0.0, skew: float = 0.0) -> int:
        sent = self.now.timestamp() + skew
        matches = tuple(Match(id=id_, count=1, at=sent - age) for id_ in ids)
        return self.matches.take(MatchReport(tenant="ml", sent=sent, matches=matches))

    def shown(self, id_: str = "u-new") -> float | None:
        """Return the match that the planner is shown, in seconds."""
        at = self.matches.latest("u", self.now).get(id_)
        return None if at is None else (at - START).total_seconds()


@pytest.mark.parametrize("skew", [0.0, -3_600.0, 86_400.0])
def test_the_age_of_a_match_counts_whatever_the_routers_clock_says(skew: float) -> None:
    desk = Desk(prefix())
    desk.seconds = 100.0
    assert desk.take("u-new", "u-old", age=40.0, skew=skew) == 2
    assert desk.shown() == pytest.approx(60.0)
    assert desk.shown("u-old") == pytest.approx(60.0)


def test_only_versions_that_are_declared_or_kept_count() -> None:
    desk = Desk(prefix(), prefix("v"))
    assert desk.take("u-new", "u-other", "w-new", "", "-", "v-old") == 2
    assert len(desk.matches) == 4
    desk.matches.follow([prefix(earlier=())])
    assert len(desk.matches) == 1
    assert (desk.shown(), desk.shown("u-old")) == (0.0, None)
    assert desk.take("u-old", "v-old") == 0
    desk.matches.follow([prefix()])
    assert (desk.shown(), desk.shown("u-old")) == (0.0, None)
    desk.matches.follow([])
    assert (len(desk.matches), desk.shown()) == (0, None)


def test_a_router_tells_only_of_its_own_tenant() -> None:
    desk = Desk(prefix(), prefix("v", namespace="other"))
    assert desk.take("u-new", "v-new", "v-old") == 1
    assert desk.matches.latest("v", desk.now) == {}


@pytest.mark.parametrize("at", [float("nan"), float("inf"), float("-inf"), 1e300, -1e300])
def test_times_that_are_none_do_no_harm(at: float) -> None:
    desk = Desk(prefix())
    match = Match.model_construct(id="u-new", count=1, at=at)
    for sent in (0.0, at):
        report = MatchReport.model_construct(tenant="ml", sent=sent, matches=(match,))
        assert desk.matches.take(report) == 1
    assert desk.shown() == 0.0


def test_a_match_of_the_past_does_not_replace_a_later_one() -> None:
    desk = Desk(prefix(ttl="1s"))
    desk.take("u-new")
    desk.seconds = 10.0
    desk.take("u-new", age=20.0)
    assert desk.shown() == 0.0


def test_a_clock_that_is_set_back_takes_no_match_to_come_for_one() -> None:
    desk = Desk(prefix(ttl="60s"))
    desk.seconds = 3_600.0
    desk.take("u-new")
    assert desk.shown() == 3_600.0
    desk.seconds = 100.0
    assert desk.shown() == 100.0
    desk.seconds = 150.0
    desk.take("u-new")
    desk.seconds = 160.0
    assert desk.shown() == 150.0


def test_traffic_alone_moves_what_is_shown_seldom_and_wakes_nobody() -> None:
    desk = Desk(prefix())
    moves: list[float | None] = []
    for second in range(0, 1_000, 10):
        desk.seconds = float(second)
        desk.take("u-new")
        if not moves or moves[-1] != desk.shown():
            moves.append(desk.shown())
    assert moves == [0.0, 300.0, 600.0, 900.0]
    assert desk.wakes == 0


@given(
    st.integers(1, 2_000),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
    st.integers(0, 10_000),
)
def test_no_idle_time_ends_while_an_old_match_is_shown(
    ttl: int, gaps: list[int], rest: int
) -> None:
    desk = Desk(prefix(ttl=f"{ttl}s"))
    for gap in gaps:
        desk.seconds += gap
        desk.take("u-old")
        desk.shown()
    last = desk.seconds
    desk.seconds += rest
    shown = desk.shown("u-old")
    assert shown is not None
    assert shown <= last
    for idle in (ttl, DEFAULT_RETENTION.idle.total_seconds()):
        assert (desk.seconds < shown + idle) == (desk.seconds < last + idle)
    assert last - shown < MATCH_STEP.total_seconds()


def test_a_match_wakes_once_what_may_have_been_let_go() -> None:
    desk = Desk(prefix(ttl="60s"))
    desk.take("u-new")
    assert desk.wakes == 1
    assert desk.shown() == 0.0
    desk.seconds = 59.0
    desk.take("u-new")
    assert desk.wakes == 1
    assert desk.shown() == 0.0
    desk.seconds = 300.0
    assert desk.shown() == 59.0, "let go by now"
    desk.take("u-old")
    assert desk.wakes == 2
    desk.take("u-old", "u-new")
    assert desk.shown() == 300.0
    desk.take("u-old", "u-new")
    assert desk.wakes == 3


def condition(status: str, reason: str) -> Condition:
    return Condition.model_validate(
        {
            "type": "Active",
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": START,
        }
    )


@pytest.mark.parametrize(
    ("ttl", "status", "reason", "expected"),
    [
        ("60s", "False", "Idle", {"ml"}),
        ("60s", "False", "OutsideWindows", {"ml"}),
        (None, "False", "OutsideWindows", set()),
        ("60s", "False", "Suspended", set()),
        ("60s", "True", "InUse", set()),
    ],
)
def test_after_a_restart_what_was_let_go_is_not_warmed_until_the_router_reports(
    ttl: str | None, status: str, reason: str, expected: set[str]
) -> None:
    rested = prefix(ttl=ttl, conditions=(condition(status, reason),))
    desk = Desk(rested)
    assert (desk.routers.routed, desk.routers.silent) == (set(), expected)
    assert let_go(rested.conditions) == (reason in ("Idle", "OutsideWindows"))
    desk.seconds = ROUTER_SECONDS
    assert desk.routers.silent == frozenset(), "there is no router"
    desk.matches.follow([rested, prefix("v")])
    assert desk.routers.silent == frozenset()
