"""How often all together may do what costs the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Pace:
    """One turn in ``seconds_each`` for all who share it, in the order in which they ask.

    Turns that nobody takes are not saved up. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        seconds_each: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._seconds_each = seconds_each
        self._sleep = sleep
        self._next = clock()

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        now = self._clock()
        at = max(now, self._next)
        self._next = at + self._seconds_each
        if at > now:
            await self._sleep(at - now)
