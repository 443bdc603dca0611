"""Schedules in time zones: the nights in which clocks change, leap days, months, weekdays."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.schedule import ScheduleError, read_schedule

from .clockwork import openings

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CASES = [
    ("a day in UTC", "30 7 * * *", "UTC", "2026-11-29T07:30", "2026-11-30T07:30"),
    ("summer time", "30 7 * * *", BERLIN, "2026-06-01T07:30", "2026-06-02T05:30"),
    ("winter time", "30 7 * * *", BERLIN, "2026-12-01T07:30", "2026-12-02T06:30"),
    ("weekdays over a weekend", "0 9 * * MON-FRI", "UTC", "2026-11-27T09:00", "2026-11-30T09:00"),
    ("Sunday as 7", "0 9 * * 7", "UTC", "2026-11-28T00:00", "2026-11-29T09:00"),
    ("clocks skip it", "30 2 * * *", BERLIN, "2026-03-29T00:00", "2026-03-29T01:00"),
    ("and the next day not", "30 2 * * *", BERLIN, "2026-03-29T01:00", "2026-03-30T00:30"),
    ("skipped hours come once", "0,30 2 * * *", BERLIN, "2026-03-29T01:00", "2026-03-30T00:00"),
    ("clocks repeat it", "30 2 * * *", BERLIN, "2026-10-25T00:00", "2026-10-25T00:30"),
    ("it comes once", "30 2 * * *", BERLIN, "2026-10-25T00:30", "2026-10-26T01:30"),
    ("asked in the second pass", "30 2 * * *", BERLIN, "2026-10-25T01:10", "2026-10-26T01:30"),
    ("by the clock: twice", "30 * * * *", BERLIN, "2026-10-25T00:30", "2026-10-25T01:30"),
    ("by the clock: none in the gap", "30 * * * *", BERLIN, "2026-03-29T00:30", "2026-03-29T01:30"),
    ("New York skips", "15 2 * * *", NEW_YORK, "2026-03-08T06:00", "2026-03-08T07:00"),
    ("midnight skipped", "0 0 * * *", "Asia/Beirut", "2026-03-28T21:00", "2026-03-28T22:00"),
    ("half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T15:00", "2026-10-03T15:30"),
    ("quarter zones", "0 9 * * *", "Asia/Kathmandu", "2026-11-29T00:00", "2026-11-29T03:15"),
    ("29 February", "0 0 29 2 *", "UTC", "2026-11-29T00:00", "2028-02-29T00:00"),
    ("29 February over 2100", "0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
    ("31st skips short months", "0 0 31 * *", "UTC", "2026-08-31T00:00", "2026-10-31T00:00"),
    ("last day of the month", "0 0 L * *", "UTC", "2026-02-01T00:00", "2026-02-28T00:00"),
    ("last working day", "0 0 LW * *", "UTC", "2026-05-01T00:00", "2026-05-29T00:00"),
    ("second Friday", "0 0 * * FRI#2", "UTC", "2026-11-01T00:00", "2026-11-13T00:00"),
    ("either day field", "0 0 13 * FRI", "UTC", "2026-11-28T00:00", "2026-12-04T00:00"),
    ("both, with a star", "0 0 */2 * MON", "UTC", "2026-11-24T00:00", "2026-12-07T00:00"),
    ("year's end", "0 0 1 1 *", "Pacific/Auckland", "2026-11-29T00:00", "2026-12-31T11:00"),
    ("lower case", "0 9 * dec mon", "UTC", "2026-11-29T00:00", "2026-12-07T09:00"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "zone", "asked", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_next_time(expression: str, zone: str, asked: str, expected: str) -> None:
    schedule = read_schedule(expression, ZoneInfo(zone))
    found = schedule.next(at(asked))
    assert found == at(expected)
    assert schedule.last(at(expected)) == at(expected)
    before = schedule.last(at(expected) - timedelta(seconds=1))
    assert before is not None
    assert before <= at(asked)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("0 0 31 2 *", "never comes: no month that it names has the day of month 31"),
        ("0 0 30,31 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("0 30 7 * * *", "five fields: .*; it has 6"),
        ("@daily", "five fields: .*; it has 1"),
        ("", "it has 0"),
        ("60 0 * * *", "its minute, 60, can't be read"),
        ("0 24 * * *", "its hour, 24, can't be read"),
        ("0 0 0 * *", "its day of month, 0, can't be read"),
        ("0 0 10-5 * *", "its day of month, 10-5, can't be read"),
        ("0 0 * 13 *", "its month, 13, can't be read"),
        ("0 0 * * SAT-SUN", "its day of week, SAT-SUN, can't be read"),
    ],
)
def test_what_can_not_be_read(expression: str, problem: str) -> None:
    with pytest.raises(ScheduleError, match=problem):
        read_schedule(expression, ZoneInfo("UTC"))


CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Asia/Beirut", "2026-03-29"),
    ("America/Santiago", "2026-09-06"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Asia/Kathmandu", "2026-03-01"),
]
MINUTES = ("0", "30", "7,45", "*/15", "*", "0-20/7")
HOURS = ("0", "1", "2", "3", "23", "0-3", "*/2", "*", "1,2,3")
DAYS_OF_MONTH = ("*", "*/2", "1", "29", "25-31")
DAYS_OF_WEEK = ("*", "SUN", "6,7", "MON-FRI", "*/3")


@cache
def looked_up(expression: str, zone: str, day: str) -> list[datetime]:
    middle = at(f"{day}T00:00")
    reach = timedelta(days=3)
    return openings(expression, ZoneInfo(zone), middle - reach, middle + reach)


@settings(max_examples=40)
@given(
    st.sampled_from(CHANGES),
    st.builds(
        "{} {} {} * {}".format,
        st.sampled_from(MINUTES),
        st.sampled_from(HOURS),
        st.sampled_from(DAYS_OF_MONTH),
        st.sampled_from(DAYS_OF_WEEK),
    ),
    st.lists(st.integers(-2 * 86_400, 2 * 86_400), min_size=1, max_size=20),
)
def test_it_agrees_with_a_look_at_every_minute(
    change: tuple[str, str], expression: str, seconds: list[int]
) -> None:
    zone, day = change
    schedule, expected = read_schedule(expression, ZoneInfo(zone)), looked_up(expression, zone, day)
    for offset in seconds:
        asked = at(f"{day}T00:00") + timedelta(seconds=offset)
        index = bisect_right(expected, asked)
        if index > 0:
            assert schedule.last(asked) == expected[index - 1]
        if index < len(expected):
            assert schedule.next(asked) == expected[index]
