"""How many Events one resource may post: each is an object of its own that lives for an hour."""

from __future__ import annotations

from collections.abc import Callable

BURST = 20
SECONDS_EACH = 60.0


class EventBudget:
    """`BURST` Events at once, and one more every `SECONDS_EACH`. ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._counted = clock()

    def take(self) -> bool:
        """Return whether another Event may be posted, and count it."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._counted) / SECONDS_EACH)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
