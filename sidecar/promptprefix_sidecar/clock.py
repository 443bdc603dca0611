"""The two clocks, passed in so that tests own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

AFTER_MIDNIGHT_S = 2.0


@dataclass(frozen=True)
class Moment:
    """One reading of both clocks: ``now`` in monotonic seconds, ``wall`` in Unix seconds."""

    now: float
    wall: float


@dataclass(frozen=True)
class Clock:
    """``monotonic`` for intervals, ``wall`` (Unix seconds) for dates and what others read."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def moment(self) -> Moment:
        """Read both clocks once."""
        return Moment(now=self.monotonic(), wall=self.wall())


def next_check(moment: Moment, interval_s: float, zone: tzinfo | None = None) -> float:
    """Return when (monotonic) a declared text is tokenized again.

    After the interval, or just after midnight if that comes first: a chat template may print the
    date. ``zone`` is the process's own if None.
    """
    today = datetime.fromtimestamp(moment.wall, UTC).astimezone(zone)
    midnight = datetime.combine(today.date() + timedelta(days=1), datetime.min.time())
    midnight = midnight.astimezone() if zone is None else midnight.replace(tzinfo=zone)
    until = midnight.timestamp() - moment.wall + AFTER_MIDNIGHT_S
    return moment.now + min(interval_s, until)
