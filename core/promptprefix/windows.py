"""Peak windows: when the schedules of a resource hold it, and when that changes next.

Durations and lead times are elapsed time: a window of 11 hours lasts 11 hours also in the night in
which the clocks change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from promptprefix.durations import parse_duration
from promptprefix.peak_window import Window
from promptprefix.schedule import Schedule, ScheduleError, read_schedule

CAPACITY: Final = 4_096
"""Sets of windows that a `Calendar` remembers."""

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""Times outside of these are asked about as if they were the nearest of them: searches from there
stay within the calendar's years."""

_STEPS = 512
HORIZON: Final = timedelta(days=35)
"""Openings without a gap between them are followed for so many and so long; their end, if it is
farther away, is told when it is nearer."""


class WindowError(ValueError):
    """A window that can't be read: ``field`` of the window, and what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


_Key: TypeAlias = tuple[tuple[Window, ...], datetime | None]
"""Windows, and the time to come that was asked about."""


@dataclass(frozen=True)
class Peak:
    """A window that was read. Times are UTC, in whole seconds."""

    name: str
    schedule: Schedule
    duration: timedelta
    lead: timedelta

    def end(self, at: datetime) -> datetime | None:
        """Return when the opening that holds at ``at``, lead time included, ends; None: none does.

        Of several it is the latest.
        """
        opening = self.schedule.last(at + self.lead)
        if opening is None or (end := opening + self.duration) <= at:
            return None
        return end


@dataclass(frozen=True)
class Hours:
    """What the windows of a resource say of one instant.

    ``window`` is the first of the open ones in the order of the spec. ``ahead`` is the one in whose
    lead time the instant is, empty in an open window, and ``opens`` when that one opens. ``change``
    is when the windows begin or cease to hold, lead times included; None: never, or too far away to
    tell. ``until`` is the earliest moment at which anything here may differ. ``errors`` name the
    fields of windows that can't be read; those windows never open.
    """

    window: str = ""
    ahead: str = ""
    opens: datetime | None = None
    change: datetime | None = None
    until: datetime | None = None
    errors: tuple[str, ...] = ()

    @property
    def holding(self) -> bool:
        """Whether a window holds the resource: it is open, or it is its lead time."""
        return bool(self.window or self.ahead)


def read_window(window: Window) -> Peak:
    """Return the window ready to be asked; raise `WindowError` if it can't be read."""
    try:
        zone = ZoneInfo(window.timeZone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problem = f"{window.timeZone} is no time zone that is known here; write one such as"
        raise WindowError("timeZone", f"{problem} Europe/Berlin") from None
    try:
        schedule = read_schedule(window.schedule, zone)
    except ScheduleError as error:
        raise WindowError("schedule", str(error)) from None
    lead = parse_duration(window.leadTime) if window.leadTime is not None else timedelta(0)
    return Peak(window.name, schedule, parse_duration(window.duration), lead)


class Calendar:
    """Answers what windows say of an instant; remembers the answer as long as it holds."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: OrderedDict[_Key, tuple[datetime, Hours]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def hours(self, windows: Sequence[Window], now: datetime) -> Hours:
        """Return what ``windows`` say of ``now``."""
        return self._hours((tuple(windows), None), now)

    def ahead(self, windows: Sequence[Window], at: datetime) -> Hours:
        """Return what ``windows`` say of a time to come; what is known of now stays known."""
        return self._hours((tuple(windows), at), at)

    def _hours(self, key: _Key, now: datetime) -> Hours:
        found = self._known.get(key)
        if found is not None:
            since, hours = found
            if since <= now and (hours.until is None or now < hours.until):
                self._known.move_to_end(key)
                return hours
        at = now.astimezone(UTC).replace(microsecond=0)
        hours = hours_of(key[0], at)
        self._known[key] = (at, hours)
        self._known.move_to_end(key)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return hours


def hours_of(windows: Sequence[Window], at: datetime) -> Hours:
    """Return what ``windows`` say of ``at``, a UTC time in whole seconds."""
    at = min(max(at, _FIRST), _LAST)
    peaks: list[Peak] = []
    errors: list[str] = []
    for index, window in enumerate(windows):
        try:
            peaks.append(read_window(window))
        except WindowError as error:
            errors.append(f"spec.windows[{index}].{error.field}: {error.problem}")
    told = tuple(errors)
    for index, peak in enumerate(peaks):
        opening = peak.schedule.last(at)
        if opening is not None and opening + peak.duration > at:
            change = _end(peaks, at)
            stronger = (each.schedule.next(at) for each in peaks[:index])
            until = _earliest((change, opening + peak.duration, *stronger))
            return Hours(window=peak.name, change=change, until=until, errors=told)
    comings = [(opening, peak) for peak in peaks if (opening := peak.schedule.next(at))]
    if leading := [(opens, peak.name) for opens, peak in comings if opens - peak.lead <= at]:
        opens, name = min(leading, key=lambda each: each[0])
        until = min(opening for opening, _ in comings)
        change = _end(peaks, at)
        return Hours(ahead=name, opens=opens, change=change, until=until, errors=told)
    begin = _earliest(opening - peak.lead for opening, peak in comings)
    return Hours(change=begin, until=begin, errors=told)


def _end(peaks: Sequence[Peak], at: datetime) -> datetime | None:
    """Return when no window holds any more that holds at ``at``; None: too far away to tell."""
    end = at
    for _ in range(_STEPS):
        reached = max((found for peak in peaks if (found := peak.end(end))), default=None)
        if reached is None:
            return end
        if end - at > HORIZON:
            return None
        end = reached
    return None


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
