"""The order of batches: what a number says about the batches before it."""

from __future__ import annotations

from enum import Enum, auto


class Arrival(Enum):
    """What a batch is to those that came before."""

    NEXT = auto()
    REPEATED = auto()
    GAP = auto()
    RESET = auto()


class BatchOrder:
    """Numbers of one publisher, which count from 0 and rise by 1.

    A lower number than expected is a repetition if that batch came by replay before, and else the
    first sign of another publisher: the engine restarted.
    """

    def __init__(self) -> None:
        self.expected: int | None = None
        self._latest = float("-inf")
        self._replayed = range(0)

    def look(self, number: int, at: float | None) -> Arrival:
        """Return what batch ``number`` is; changes nothing.

        ``at`` is when it was made (Unix seconds), None if it can't be read.
        """
        if self.expected is None or number == self.expected:
            return Arrival.NEXT
        if number > self.expected:
            return Arrival.GAP
        old = number in self._replayed and (at is None or at <= self._latest)
        return Arrival.REPEATED if old else Arrival.RESET

    def take(self, number: int, at: float | None, *, replayed: bool = False) -> None:
        """Go on behind batch ``number``."""
        if replayed:
            again = self._replayed.stop == number
            self._replayed = range(self._replayed.start if again else number, number + 1)
        self.expected = number + 1
        self._latest = max(self._latest, at if at is not None else self._latest)
