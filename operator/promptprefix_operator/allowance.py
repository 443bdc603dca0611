"""How often something may be done that costs the cluster: an Event lives on for an hour."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """``burst`` times at once, and once more every ``seconds_each``. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float], burst: int, seconds_each: float) -> None:
        self._clock = clock
        self._burst = burst
        self._seconds_each = seconds_each
        self._left = float(burst)
        self._counted = clock()

    @property
    def wait(self) -> float:
        """Seconds until it may be done once more; 0 if it may be done now."""
        self._count()
        return max(0.0, 1 - self._left) * self._seconds_each

    def take(self) -> bool:
        """Return whether it may be done once more, and count it."""
        self._count()
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _count(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._counted) / self._seconds_each)
        self._counted = now
