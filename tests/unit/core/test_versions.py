"""How long replaced versions are kept, and what a status says of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.fleet import Prefix, Retention, Snapshot, Version
from promptprefix.resource import MAX_VERSIONS, VersionStatus
from promptprefix.versions import WRITE_STEP, kept_until, only_warm, retained, version_statuses
from promptprefix.wire import MATCH_STEP_S, Phase
from tests.unit.core.fleets import pod, sidecar, state

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
RETENTION = Retention(idle=timedelta(minutes=10), max_age=timedelta(hours=1))
STEP = MATCH_STEP_S / 60


def version(name: str, **changes: object) -> Version:
    made = Version(f"u-{name}", "m", f"fp-{name}", f"cd-{name}", since=NOW)
    return replace(made, **changes)  # type: ignore[arg-type]


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("superseded", "own", "engines", "end"),
    [
        (None, None, None, None),
        (None, ago(999), None, None),
        (0, None, None, 10),
        (9, None, None, 1),
        (10, None, None, 0),
        (30, ago(4), None, 6 + STEP),
        (30, None, ago(4), 6 + STEP),
        (30, ago(8), ago(4), 6 + STEP),
        (30, ago(4), ago(8), 6 + STEP),
        (5, ago(40), None, 5),
        (0.1, ago(0), None, 10 + STEP),
        (55, ago(0), ago(0), 5),
        (60, ago(0), ago(0), 0),
        (600, ago(0), None, -540),
        (5, None, datetime.max.replace(tzinfo=UTC), 55),
    ],
)
def test_a_version_is_kept_while_it_is_matched_and_never_for_too_long(
    superseded: float | None, own: datetime | None, engines: datetime | None, end: float | None
) -> None:
    at = None if superseded is None else ago(superseded)
    made = version("a", superseded=at, last_matched=own)
    until = kept_until(made, engines, RETENTION)
    assert until == (None if end is None else NOW + timedelta(minutes=end))
    assert retained(made, engines, NOW, RETENTION) == (end is None or end > 0)


times = st.integers(0, 5_000).map(ago)


@given(times, st.none() | times, st.none() | times, st.integers(-50, 5_000))
def test_what_is_kept_at_a_time_was_kept_before_it(
    superseded: datetime, own: datetime | None, engines: datetime | None, minutes: int
) -> None:
    made, at = version("a", superseded=superseded, last_matched=own), ago(minutes)
    end = kept_until(made, engines, RETENTION)
    assert end is not None
    assert superseded < end <= superseded + RETENTION.max_age
    assert retained(made, engines, at, RETENTION) == (at < end)


@pytest.mark.parametrize(
    ("namespace", "phases", "found"),
    [
        ("ml", {"u-a": Phase.WARM}, {"u-a"}),
        ("ml", {"u-a": Phase.WARM, "u-b": Phase.WARMING, "v-c": Phase.WARM}, {"u-a"}),
        ("ml", {"u-a": Phase.WARM, "u-b": Phase.WARM}, set()),
        ("ml", {"u-a": Phase.RELEASED}, set()),
        ("other", {"u-a": Phase.WARM}, set()),
    ],
)
def test_a_text_is_needed_where_a_pod_of_its_namespace_has_no_other_one_warm(
    namespace: str, phases: dict[str, Phase], found: set[str]
) -> None:
    reported = sidecar(*(state(id_, 1, phase) for id_, phase in phases.items()))
    holder, silent = pod("p", namespace=namespace), pod("q")
    snapshot = Snapshot((), (holder, silent), {holder.uid: reported, "uid-unknown": reported})
    assert only_warm(snapshot).get(("ml", "u"), set()) == found


CURRENT = version("new", last_matched=NOW)
OLD = version("old", since=ago(60), superseded=NOW)
PREFIX = Prefix("u", "ml", "a", 1, None, CURRENT, earlier=(OLD,))


def statuses(
    prefix: Prefix, warm: dict[str, int], minutes: float = 0, **matched: datetime
) -> list[VersionStatus]:
    found = {f"u-{name}": at for name, at in matched.items()}
    return version_statuses(prefix, warm, found, NOW + timedelta(minutes=minutes))


def test_the_status_tells_of_each_version() -> None:
    assert statuses(PREFIX, {"u-new": 1, "u-old": 2}, old=ago(1)) == [
        VersionStatus(
            id="new",
            fingerprint="fp-new",
            contentDigest="cd-new",
            warmPods=1,
            since=NOW,
            lastMatched=NOW,
        ),
        VersionStatus(
            id="old",
            fingerprint="fp-old",
            contentDigest="cd-old",
            warmPods=2,
            since=ago(60),
            superseded=NOW,
            lastMatched=ago(1),
        ),
    ]


def test_a_match_that_was_written_by_a_wrong_clock_is_written_anew() -> None:
    [current, _] = statuses(PREFIX, {"u-new": 1, "u-old": 1})
    ahead = current.model_copy(update={"lastMatched": NOW + timedelta(hours=1)})
    [seen] = statuses(replace(PREFIX, earlier=(), versions=(ahead,)), {"u-new": 1}, 1)
    assert seen.lastMatched == NOW


def test_no_match_is_written_before_it_was() -> None:
    never = datetime.max.replace(tzinfo=UTC)
    ahead = replace(PREFIX, version=replace(CURRENT, last_matched=never))
    for listed in (statuses(ahead, {"u-old": 1}, old=never), statuses(ahead, {"u-old": 1})):
        assert listed[0].lastMatched == NOW
    assert [each.lastMatched for each in statuses(ahead, {"u-old": 1}, 1, old=never)] == [
        NOW + timedelta(minutes=1)
    ] * 2


def test_an_earlier_version_is_listed_from_its_first_holder_on_as_long_as_it_is_kept() -> None:
    assert [each.id for each in statuses(PREFIX, {"u-new": 1})] == ["new"]
    listed = tuple(statuses(PREFIX, {"u-old": 1}))
    assert [each.id for each in listed] == ["new", "old"]
    still = replace(PREFIX, versions=listed)
    assert [each.id for each in statuses(still, {})] == ["new", "old"], "its pod is away"
    assert [each.id for each in statuses(replace(still, earlier=()), {})] == ["new"]
    unread = replace(PREFIX, version=None, earlier=(replace(CURRENT), OLD))
    assert [each.id for each in statuses(unread, {"u-new": 1})] == ["new"]
    many = replace(PREFIX, earlier=tuple(version(str(n), superseded=NOW) for n in range(5)))
    assert len(statuses(many, {f"u-{n}": 1 for n in range(5)})) == MAX_VERSIONS


def test_matches_alone_write_seldom() -> None:
    first = statuses(PREFIX, {"u-old": 1}, old=NOW)
    prefix = replace(PREFIX, versions=tuple(first))
    step = WRITE_STEP.total_seconds() / 60
    soon, late = NOW + timedelta(minutes=step - 0.1), NOW + WRITE_STEP
    assert statuses(prefix, {"u-old": 1}, minutes=1) == first, "engines forget what they counted"
    assert statuses(prefix, {"u-old": 1}, minutes=step, old=soon) == first
    [_, moved] = statuses(prefix, {"u-old": 1}, minutes=step, old=late)
    assert moved.lastMatched == late
    [_, moved] = statuses(prefix, {"u-old": 2}, minutes=step, old=soon)
    assert moved.lastMatched == soon.replace(microsecond=0), "where more changes it is exact"


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 400), st.integers(1, 400)),
        max_size=30,
    )
)
def test_a_status_that_was_written_is_not_written_again(
    steps: list[tuple[int, int, int, int]],
) -> None:
    prefix, now, writes = PREFIX, NOW, 0
    shapes: list[tuple[int, int]] = []
    for new, old, age, passed in steps:
        now += timedelta(seconds=passed)
        matched = {"u-old": now - timedelta(seconds=age)}
        made = version_statuses(prefix, {"u-new": new, "u-old": old}, matched, now)
        if tuple(made) != prefix.versions:
            writes += 1
        prefix = replace(prefix, versions=tuple(made))
        assert tuple(version_statuses(prefix, {"u-new": new, "u-old": old}, matched, now)) == (
            prefix.versions
        )
        shapes.append((new, old))
    changes = sum(one != other for one, other in pairwise(shapes))
    assert writes <= 2 + changes + (now - NOW) / WRITE_STEP
