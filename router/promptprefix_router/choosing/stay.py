"""How long a request stays active, by what Envoy counts."""

from __future__ import annotations

import math

LONG_MEMORY_S = 10.0
SHORT_MEMORY_S = 0.3
"""What was seen counts a third (1/e) after this time."""
LEAST_REQUESTS = 20
"""Fewer requests than these, within the long memory, tell nothing."""
LEAST_S = 0.02
"""No request is expected to take less."""


class Stay:
    """The mean time of a request by Little's law: active requests / requests begun in a second.

    It is that of the long or of the short memory, whichever is longer: requests that take longer
    are noticed at once, ones that take less time later. A mean says nothing of a single request;
    long ones beside many short ones make it longer for all of them.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._served = 0
        self._means = (_Mean(LONG_MEMORY_S), _Mean(SHORT_MEMORY_S))
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """The mean time; None if too little is known, or if the next reading comes before."""
        return self._seconds

    def note(self, at: float, active: int, served: int) -> None:
        """Take a reading: at this second so many were active, and so many begun since ever."""
        apart = 0.0 if self._at is None else at - self._at
        begun = served - self._served
        self._at, self._served = at, served
        self._seconds = None
        if apart <= 0 or begun < 0:
            # The first reading, or Envoy began to count anew.
            return
        for mean in self._means:
            mean.note(apart, active, begun)
        longer = active >= begun and active > 0
        if self._means[0].begun >= LEAST_REQUESTS and not longer:
            seconds = max(LEAST_S, *(mean.seconds for mean in self._means))
            self._seconds = seconds if seconds < apart else None


class _Mean:
    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._active_s = 0.0
        self.begun = 0.0

    @property
    def seconds(self) -> float:
        return self._active_s / self.begun if self.begun else 0.0

    def note(self, apart: float, active: int, begun: int) -> None:
        kept = math.exp(-apart / self._memory_s)
        self._active_s = kept * self._active_s + active * apart
        self.begun = kept * self.begun + begun
