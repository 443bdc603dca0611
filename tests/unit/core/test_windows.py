"""Peak windows: what is open, what holds, and when that changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.durations import parse_duration
from promptprefix.peak_window import Window
from promptprefix.windows import Calendar, Hours, hours_of

from .clockwork import MINUTE, openings


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def window(
    schedule: str, duration: str, zone: str = "UTC", lead: str | None = None, name: str = "w"
) -> Window:
    return Window(name=name, schedule=schedule, duration=duration, timeZone=zone, leadTime=lead)


OFFICE = window("30 7 * * MON-FRI", "11h", "Europe/Berlin", "10m", "office")
NIGHT = window("0 22 * * *", "8h", name="night")
LATE = window("0 5 * * *", "2h30m", name="late")
ROUND_THE_CLOCK = window("0 0 * * *", "24h", name="always")
BERLIN_DAYS = window("0 0 * * *", "24h", "Europe/Berlin", name="always")
MIDNIGHT = window("0 0 * * *", "1h", lead="30m", name="midnight")
LONG = window("0 0 1 * *", "720h", name="month")

YEARS = [datetime.min.replace(tzinfo=UTC), at("9000-06-01"), datetime.max.replace(tzinfo=UTC)]


@pytest.mark.parametrize("time", YEARS, ids=str)
@pytest.mark.parametrize("asked", [OFFICE, LONG, window("0 0 29 2 *", "8784h", lead="8784h")])
def test_no_time_is_too_far_away_to_be_asked_about(asked: Window, time: datetime) -> None:
    told = Calendar().ahead([asked, MIDNIGHT], time)
    assert told.until is not None
    assert told.errors == ()


CASES = [
    ("before the lead time", [OFFICE], "2026-11-27T06:19:59", "", "", "2026-11-27T06:20"),
    ("lead time", [OFFICE], "2026-11-27T06:20:00", "", "office", "2026-11-27T17:30"),
    ("its last second", [OFFICE], "2026-11-27T06:29:59", "", "office", "2026-11-27T17:30"),
    ("open", [OFFICE], "2026-11-27T06:30:00", "office", "", "2026-11-27T17:30"),
    ("the last second", [OFFICE], "2026-11-27T17:29:59", "office", "", "2026-11-27T17:30"),
    ("over the weekend", [OFFICE], "2026-11-27T17:30:00", "", "", "2026-11-30T06:20"),
    ("in summer", [OFFICE], "2026-06-01T05:30:00", "office", "", "2026-06-01T16:30"),
    ("over midnight", [NIGHT], "2026-11-29T03:00:00", "night", "", "2026-11-29T06:00"),
    ("overlap", [LATE, NIGHT], "2026-11-29T05:30", "late", "", "2026-11-29T07:30"),
    ("in the spec's order", [NIGHT, LATE], "2026-11-29T05:30", "night", "", "2026-11-29T07:30"),
    ("ends together", [NIGHT, LATE], "2026-11-29T03:00", "night", "", "2026-11-29T07:30"),
    ("lead time over midnight", [MIDNIGHT], "2026-11-29T23:30", "", "midnight", "2026-11-30T01:00"),
    ("back to back", [ROUND_THE_CLOCK], "2026-11-29T12:00", "always", "", None),
    ("a day of 25 hours", [BERLIN_DAYS], "2026-10-20T12:00", "always", "", "2026-10-25T22:00"),
    ("in the hour that is left", [BERLIN_DAYS], "2026-10-25T22:30", "", "", "2026-10-25T23:00"),
    ("a day of 23 hours leaves none", [BERLIN_DAYS], "2026-03-29T22:30", "always", "", None),
    ("longer than a day", [LONG], "2026-11-29T12:00", "month", "", "2026-12-31T00:00"),
    ("longer than February", [LONG], "2026-02-28T23:59:59", "month", "", "2026-03-31T00:00"),
    ("a lead time fills the gap", [LATE, window("0 8 * * *", "1h", lead="30m", name="b")],
     "2026-11-29T07:29:59", "late", "", "2026-11-29T09:00"),
    ("a lead time alone between", [LATE, window("0 8 * * *", "1h", lead="30m", name="b")],
     "2026-11-29T07:30:00", "", "b", "2026-11-29T09:00"),
    ("through the night of change", [window("0 22 * * *", "8h", "Europe/Berlin")],
     "2026-10-24T22:00", "w", "", "2026-10-25T04:00"),
    ("opens in the gap", [window("30 2 * * *", "1h", "Europe/Berlin")],
     "2026-03-29T01:00", "w", "", "2026-03-29T02:00"),
    ("opens in the first pass", [window("30 2 * * *", "1h", "Europe/Berlin")],
     "2026-10-25T01:29:59", "w", "", "2026-10-25T01:30"),
    ("29 February", [window("0 0 29 2 *", "24h")], "2026-11-29T12:00", "", "", "2028-02-29T00:00"),
    ("no windows", [], "2026-11-29T12:00", "", "", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("windows", "asked", "name", "ahead", "change"),
    [c[1:] for c in CASES],
    ids=[c[0] for c in CASES],
)
def test_hours(
    windows: list[Window], asked: str, name: str, ahead: str, change: str | None
) -> None:
    hours = hours_of(windows, at(asked))
    assert (hours.window, hours.ahead) == (name, ahead)
    assert hours.change == (None if change is None else at(change))
    assert hours.errors == ()
    assert (hours.opens is None) is (not ahead)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (window("0 0 * * *", "1h", "Europe/Atlantis"), "timeZone: Europe/Atlantis is no time zone"),
        (window("0 0 * * *", "1h", "Europe"), "timeZone: Europe is no time zone"),
        (window("0 0 31 2 *", "1h"), "schedule: never comes"),
        (window("0 0 0 * * *", "1h"), "schedule: must be a cron expression of five fields"),
        (window("0 0 10-5 * *", "1h"), "schedule: its day of month, 10-5, can't be read"),
    ],
)
def test_a_window_that_can_not_be_read_is_named_and_the_others_count(
    bad: Window, error: str
) -> None:
    hours = hours_of([OFFICE, bad], at("2026-11-27T12:00"))
    assert hours.window == "office"
    assert len(hours.errors) == 1
    assert hours.errors[0].startswith(f"spec.windows[1].{error}")
    assert hours_of([bad], at("2026-11-27T12:00")) == Hours(
        errors=(hours.errors[0].replace("[1]", "[0]"),)
    )


def test_a_time_without_gaps_has_an_end_once_it_is_near() -> None:
    weeks = window("0 0 * 1-11 *", "24h")
    assert hours_of([weeks], at("2026-10-01T12:00")).change is None
    assert hours_of([weeks], at("2026-11-01T12:00")).change == at("2026-12-01T00:00")


def test_a_calendar_answers_from_memory_until_the_answer_ends() -> None:
    calendar = Calendar(capacity=2)
    first = calendar.hours([OFFICE], at("2026-11-27T12:00"))
    assert calendar.hours([OFFICE], at("2026-11-27T17:29:59.999999")) is first
    later = calendar.hours([OFFICE], at("2026-11-27T17:30"))
    assert (later.window, later.change) == ("", at("2026-11-30T06:20"))
    assert calendar.hours([OFFICE], at("2026-11-27T12:00")) == first  # clocks are set back, too
    ahead = calendar.ahead([OFFICE], at("2026-11-30T12:00"))
    assert ahead.window == "office"
    assert calendar.hours([OFFICE], at("2026-11-27T12:01")).change == at("2026-11-27T17:30")
    for hour in range(10):
        calendar.hours([window(f"0 {hour} * * *", "1h")], at("2026-11-27T12:00"))
    assert len(calendar) == 2


START = at("2026-10-24T00:00")
MINUTES_SEEN = 3 * 24 * 60
ZONES = ("UTC", "Europe/Berlin", "Asia/Kathmandu")

drawn = st.builds(
    window,
    st.builds(
        "{} {} * * {}".format,
        st.sampled_from(("0", "30", "15,45", "*/20", "*")),
        st.sampled_from(("0", "2", "3", "9-11", "23", "*", "*/6")),
        st.sampled_from(("*", "SUN", "MON,SAT")),
    ),
    st.sampled_from(("1m", "20m", "1h", "7h", "24h", "30h")),
    st.sampled_from(ZONES),
    st.sampled_from((None, "1m", "45m", "3h")),
)


@cache
def opened(schedule: str, zone: str) -> list[datetime]:
    begin, end = START - timedelta(days=2), START + timedelta(days=4)
    return openings(schedule, ZoneInfo(zone), begin, end)


def tables(windows: list[Window]) -> tuple[list[str], list[bool]]:
    """Return for each minute the first open window, and whether any holds."""
    names, holding = [""] * MINUTES_SEEN, [False] * MINUTES_SEEN
    for each in reversed(windows):
        minutes = int(parse_duration(each.duration) / MINUTE)
        lead = int(parse_duration(each.leadTime) / MINUTE) if each.leadTime else 0
        for opening in opened(each.schedule, each.timeZone):
            first = int((opening - START) / MINUTE)
            for minute in range(max(0, first - lead), min(MINUTES_SEEN, first + minutes)):
                holding[minute] = True
                if minute >= first:
                    names[minute] = each.name
    return names, holding


@settings(max_examples=25)
@given(
    st.lists(drawn, min_size=1, max_size=3),
    st.lists(st.integers(0, 2 * 24 * 60 * 60), min_size=1, max_size=8),
)
def test_it_agrees_with_a_look_at_every_minute(windows: list[Window], seconds: list[int]) -> None:
    windows = [each.model_copy(update={"name": f"w{i}"}) for i, each in enumerate(windows)]
    names, holding = tables(windows)
    calendar = Calendar()
    for second in sorted(seconds):
        asked, minute = START + timedelta(seconds=second), second // 60
        hours = calendar.hours(windows, asked)
        assert hours.window == names[minute]
        assert hours.holding is holding[minute]
        if hours.ahead:
            assert hours.opens is not None
            assert hours.opens > asked
        changes = (m for m in range(minute + 1, MINUTES_SEEN) if holding[m] is not holding[minute])
        change = next(changes, None)
        seen = START + timedelta(minutes=MINUTES_SEEN)
        if change is not None:
            assert hours.change == START + timedelta(minutes=change)
        else:
            assert hours.change is None or hours.change >= seen
        end = MINUTES_SEEN if hours.until is None else int((hours.until - START) / MINUTE)
        assert end > minute
        assert set(names[minute : min(end, MINUTES_SEEN)]) == {hours.window}
