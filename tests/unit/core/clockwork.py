"""Oracle for peak windows: looks at every minute, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def numbers(field: str, low: int, high: int) -> set[int]:
    """Return what a field of a cron expression stands for."""
    found: set[int] = set()
    for part in field.split(","):
        values, _, step = part.partition("/")
        first, _, last = (str(DAYS.index(v)) if v in DAYS else v for v in values.partition("-"))
        begin = low if first == "*" else int(first)
        end = high if first == "*" or (step and not last) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


@dataclass
class Expression:
    """A cron expression, by its fields."""

    text: str

    def __post_init__(self) -> None:
        minute, hour, day, month, weekday = self.text.split()
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.days, self.months = numbers(day, 1, 31), numbers(month, 1, 12)
        self.weekdays = {each % 7 for each in numbers(weekday, 0, 7)}
        self.both_days = day.startswith("*") or weekday.startswith("*")
        self.by_clock = minute.startswith("*") or hour.startswith("*")

    def names(self, local: datetime) -> bool:
        """Whether it names this minute of a local clock."""
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and local.month in self.months
            and ((day and weekday) if self.both_days else (day or weekday))
        )


@cache
def minutes(zone: ZoneInfo, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Return all minutes in [begin, end] with what the clocks of the zone show."""
    count = int((end - begin) / MINUTE) + 1
    return [(at, local(at, zone)) for at in (begin + n * MINUTE for n in range(count))]


def openings(text: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Return when a schedule comes in [begin, end], minute by minute."""
    expression, found = Expression(text), set[datetime]()
    if expression.by_clock:
        return [at for at, time in minutes(zone, begin, end) if expression.names(time)]
    time = local(begin, zone) - timedelta(days=1)
    while time <= local(end, zone) + timedelta(days=1):
        if expression.names(time):
            there = time
            while local(there.replace(tzinfo=zone).astimezone(UTC), zone) != there:  # in a gap
                there += MINUTE
            found.add(there.replace(tzinfo=zone).astimezone(UTC))
        time += MINUTE
    return [at for at in sorted(found) if begin <= at <= end]


def local(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)
