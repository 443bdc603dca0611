"""The time that plans are made by: it never jumps with the machine's clock.

Clocks of machines are set: by hand, at boot, when a virtual machine wakes. A plan that followed at
once would let prefixes go in their peak hour and warm them again a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

JUMP_S: Final = 2.0
"""Seconds by which the machine's clock may be off before that counts as a jump, not as drift."""
STANDS_S: Final = 60.0
"""A jump is followed when the machine's clock has stood by it for so long."""
SLEW: Final = 0.05
"""Share of the passing time by which drift is made up for; time never runs backwards for it."""


@dataclass(frozen=True)
class _Jump:
    """What the machine's clock differs by, and since when (monotonic seconds)."""

    seconds: float
    since: float


class SteadyClock:
    """Time from a monotonic clock that follows the ``wall`` clock without its jumps.

    ``monotonic`` is in seconds. It looks at both only when it is asked for the time; so somebody
    has to ask every few seconds, or a jump is followed that much later.
    """

    def __init__(self, wall: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._read_at = monotonic()
        self._time = wall()
        self._jump: _Jump | None = None

    def now(self) -> datetime:
        """Return the time, in UTC."""
        monotonic = self._monotonic()
        passed = monotonic - self._read_at
        self._read_at = monotonic
        self._time += timedelta(seconds=passed)
        off = (self._wall() - self._time).total_seconds()
        if abs(off) <= JUMP_S:
            self._jump = None
            most = SLEW * passed
            self._time += timedelta(seconds=max(-most, min(most, off)))
        elif self._stands(off, monotonic):
            self._jump = None
            self._time += timedelta(seconds=off)
        return self._time.astimezone(UTC)

    def _stands(self, off: float, monotonic: float) -> bool:
        """Note a jump; return whether the same one has been there for long enough."""
        if self._jump is None or abs(off - self._jump.seconds) > JUMP_S:
            self._jump = _Jump(off, monotonic)
        return monotonic - self._jump.since >= STANDS_S
