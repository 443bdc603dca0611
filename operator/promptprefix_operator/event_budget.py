"""How many Events may be posted: each is an object of its own that lives for an hour."""

from __future__ import annotations

from collections.abc import Callable

BURST = 20
SECONDS_EACH = 60.0


class EventBudget:
    """``burst`` Events at once, and one more every ``seconds_each``. ``clock`` is monotonic."""

    def __init__(
        self,
        clock: Callable[[], float],
        burst: int = BURST,
        seconds_each: float = SECONDS_EACH,
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._seconds_each = seconds_each
        self._left = float(burst)
        self._counted = clock()

    def take(self) -> bool:
        """Return whether another Event may be posted, and count it."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._counted) / self._seconds_each)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
