"""Cron schedules in a time zone, as Debian's cron reads them.

Where both day fields are restricted, one of them is enough. A time of day that the clocks skip
comes at the first moment after the gap, and one that they repeat comes once, the first time. A
schedule that begins its minutes or hours with ``*`` follows the clock instead: nothing comes in a
gap, and what is repeated comes twice. (cron(8) of Debian, "Daylight Saving Time".)

Cronsim reads the expressions and enumerates times of day; what a zone makes of those stands here,
because its own enumeration goes astray where clocks change at midnight or by half an hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_FIELDS = 5
_SECOND = timedelta(seconds=1)
_FOLD = timedelta(hours=3)
"""Longer than clocks are ever set back."""
_SAMPLE = timedelta(days=7)
"""Shorter than any zone keeps an offset."""
_REFERENCE = datetime(2024, 1, 1)
"""A time of day, in no zone; any does."""


_RANGES = (
    r"[0-5]?[0-9]",
    r"([01]?[0-9]|2[0-3])",
    r"(0?[1-9]|[12][0-9]|3[01])",
    r"(0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)",
    r"([0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)",
)
_SPECIALS = ("", "", "|LW?", "", "|[0-7]L|([0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)#[1-5]")
"""What else a field may say: the last day or working day of the month, its last or nth weekday."""


def _field(value: str, special: str) -> str:
    term = rf"(([*]|{value}(-{value})?)(/[1-9][0-9]?)?{special})"
    return f"{term}(,{term})*"


CRON_PATTERN: Final = "^(?i){}$".format(
    " +".join(_field(*each) for each in zip(_RANGES, _SPECIALS, strict=True))
)
"""Regular expression (RE2, without backslashes) of a cron expression."""


class ScheduleError(ValueError):
    """Not a cron expression of five fields, or one that never comes."""


@dataclass(frozen=True)
class Schedule:
    """A cron expression in ``zone``. All instants are UTC, in whole seconds."""

    expression: str
    zone: ZoneInfo

    def last(self, at: datetime) -> datetime | None:
        """Return the latest time that is not after ``at``."""
        return self._last_by_clock(at) if self._by_clock else self._last_by_day(at)

    def next(self, at: datetime) -> datetime | None:
        """Return the first time after ``at``."""
        return self._next_by_clock(at) if self._by_clock else self._next_by_day(at)

    @property
    def _by_clock(self) -> bool:
        """Whether it follows the clock instead of naming times of day."""
        minute, hour, *_ = self.expression.split()
        return minute.startswith("*") or hour.startswith("*")

    def _last_by_day(self, at: datetime) -> datetime | None:
        local = at.astimezone(self.zone)
        # In a repeated hour, times of day that read as if they were to come have been there.
        latest = _naive(local) + (_FOLD if local.fold else timedelta(0))
        for time in self._before(latest + _SECOND):
            if (instant := self._instant(time)) <= at:
                return instant
        return None

    def _next_by_day(self, at: datetime) -> datetime | None:
        for time in self._after(self._local(at)):
            if (instant := self._instant(time)) > at:
                return instant
        return None

    def _last_by_clock(self, at: datetime) -> datetime | None:
        while True:
            local = self._local(at)
            time = next(self._before(local + _SECOND), None)
            if time is None:
                return None
            found = at - (local - time)
            change = self._last_change(found, at)
            if change is None:
                return found
            at = change - _SECOND

    def _next_by_clock(self, at: datetime) -> datetime | None:
        while True:
            local = self._local(at)
            time = next(self._after(local), None)
            if time is None:
                return None
            found = at + (time - local)
            change = self._next_change(at, found)
            if change is None:
                return found
            at = change
            local = self._local(at)
            if next(self._after(local - _SECOND), None) == local:
                return at

    def _after(self, time: datetime) -> Iterator[datetime]:
        """Yield the times of day after ``time``."""
        return iter(CronSim(self.expression, time))

    def _before(self, time: datetime) -> Iterator[datetime]:
        """Yield the times of day before ``time``, latest first."""
        return iter(CronSim(self.expression, time, reverse=True))

    def _local(self, at: datetime) -> datetime:
        return _naive(at.astimezone(self.zone))

    def _instant(self, time: datetime) -> datetime:
        """Return when a time of day comes first; one in a gap comes when the gap ends."""
        instant = time.replace(tzinfo=self.zone).astimezone(UTC)
        if self._local(instant) == time:
            return instant
        before_gap = time.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        return self._bisect(before_gap, instant)

    def _next_change(self, after: datetime, until: datetime) -> datetime | None:
        """Return the first change of the zone's offset in (after, until]."""
        while after < until:
            end = min(after + _SAMPLE, until)
            if self._offset(end) != self._offset(after):
                return self._bisect(after, end)
            after = end
        return None

    def _last_change(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last change of the zone's offset in (after, until]."""
        while after < until:
            begin = max(until - _SAMPLE, after)
            if self._offset(begin) != self._offset(until):
                return self._bisect(begin, until)
            until = begin
        return None

    def _bisect(self, before: datetime, after: datetime) -> datetime:
        """Return the second from which on the offset is no longer that of ``before``."""
        first = self._offset(before)
        low, high = 0, int((after - before).total_seconds())
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(before + timedelta(seconds=middle)) == first:
                low = middle
            else:
                high = middle
        return before + timedelta(seconds=high)

    def _offset(self, at: datetime) -> timedelta | None:
        return at.astimezone(self.zone).utcoffset()


def read_schedule(expression: str, zone: ZoneInfo) -> Schedule:
    """Return the schedule; raise `ScheduleError` if it can't be read or never comes."""
    fields = expression.split()
    if len(fields) != _FIELDS:
        raise ScheduleError(
            "must be a cron expression of five fields: minute, hour, day of month, month and day "
            f"of week; it has {len(fields)}"
        )
    try:
        next(CronSim(expression, _REFERENCE))
    except CronSimError as error:
        raise ScheduleError(_problem(str(error), fields)) from None
    except StopIteration:
        raise ScheduleError("never comes: there is no such day") from None
    return Schedule(expression, zone)


def _problem(told: str, fields: list[str]) -> str:
    """Return what cronsim has to say in words; it names a field, never why."""
    names = ("minute", "hour", "day-of-month", "month", "day-of-week")
    name = told.removeprefix("Bad ")
    if name not in names:
        return "is no cron expression"
    text = fields[names.index(name)]
    words = name.replace("-", " ")
    if name == "day-of-month" and re.fullmatch(r"3[01]([,/-]3[01])*", text):
        return f"never comes: no month that it names has the {words} {text}"
    return f"its {words}, {text}, can't be read"


def _naive(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0)
