"""The time after a start in which sidecars may still report for the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RECONNECT_S: Final = 10.0
"""After a start sidecars have this long to report before anything is moved or let go without."""
SILENCE_S: Final = 30.0
"""The same after a leader that went silent: where its node is gone, its clients wait for it for
`ANSWER_TIMEOUT_S` and dial for a few seconds more; part of that passed before its lease ran out."""
ARRIVAL_S: Final = 5.0
"""Where one has come in the last so many seconds others may be about to."""
LONGEST_S: Final = 60.0
"""Whatever comes: so long at most."""


class Settling:
    """Lasts for ``least_seconds``, and longer while ever more sidecars come: they may be slow.

    ``came`` is when the latest of them did; it and ``clock`` are by the same clock. 0: not at all.
    """

    def __init__(
        self, clock: Callable[[], float], came: Callable[[], float | None], least_seconds: float
    ) -> None:
        self._clock = clock
        self._came = came
        self._began = clock()
        self._least = least_seconds
        self._over = least_seconds <= 0

    @property
    def left(self) -> float:
        """Seconds that are left by what is known now; once it is over it stays so."""
        if self._over:
            return 0.0
        until = self._began + self._least
        if (came := self._came()) is not None:
            until = max(until, min(came + ARRIVAL_S, self._began + LONGEST_S))
        left = until - self._clock()
        self._over = left <= 0
        return max(0.0, left)
