"""Growing waits between retries, of one or of all that ask the same server."""

from __future__ import annotations

import random
from collections.abc import Callable


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


class Pause:
    """What all who ask one server wait together while it is away, so that few of them try.

    ``clock`` is monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], limit: float = 30.0) -> None:
        self._clock = clock
        self._backoff = Backoff(limit=limit)
        self._until = clock()

    @property
    def wait(self) -> float:
        """Seconds until the server may be asked; 0 if it may be asked now."""
        return max(0.0, self._until - self._clock())

    def failed(self) -> None:
        """Pause for longer than before; failures within a pause lengthen nothing."""
        if self.wait == 0:
            self._until = self._clock() + self._backoff.next()

    def worked(self) -> None:
        """End the pause."""
        self._backoff.reset()
        self._until = self._clock()
