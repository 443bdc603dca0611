"""What fails again and again is told seldom: the first failure, one line a minute, the recovery."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from promptprefix_operator.api_server import ApiError

SUMMARY_SECONDS = 60.0
"""Of failures with the same HTTP status one is told in so many seconds."""


class Troubles:
    """Logs the failures of many doings of one sort, each known by a key.

    A line tells how many of them fail just now and how many failures were not told since the last
    line. ``clock`` is monotonic seconds.
    """

    def __init__(
        self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float], failing: str, well: str
    ) -> None:
        self._log = log
        self._clock = clock
        self._failing = failing
        self._well = well
        self._keys: set[str] = set()
        self._untold = 0
        self._told_at: dict[int, float] = {}
        self._told = False

    def failed(self, key: str, error: ApiError, **where: object) -> None:
        """Take note of a failure; ``where`` goes into the line that tells it."""
        self._keys.add(key)
        now = self._clock()
        if now - self._told_at.get(error.status, -SUMMARY_SECONDS) < SUMMARY_SECONDS:
            self._untold += 1
            return
        self._told_at[error.status] = now
        self._told = True
        self._log.warning(
            self._failing, error=str(error), failing=len(self._keys), untold=self._untold, **where
        )
        self._untold = 0

    def worked(self, key: str) -> None:
        """Take note that it worked, or is not tried any more."""
        if key not in self._keys:
            return
        self._keys.discard(key)
        if not self._keys and self._told:
            self._log.info(self._well, untold=self._untold)
            self._told, self._untold = False, 0
