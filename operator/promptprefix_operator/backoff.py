"""Growing waits between retries."""

from __future__ import annotations

import random


class Backoff:
    """Doubles from ``first`` to ``limit`` seconds, each wait shortened at random by up to half.

    The randomness keeps many clients from asking again at the same moment.
    """

    def __init__(self, first: float = 0.5, limit: float = 30.0) -> None:
        self._first = first
        self._limit = limit
        self._wait = first

    def next(self) -> float:
        """Return the next wait in seconds."""
        wait = self._wait
        self._wait = min(self._limit, wait * 2)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def reset(self) -> None:
        """Begin anew after a success."""
        self._wait = self._first
