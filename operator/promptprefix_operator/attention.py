"""The time in which this process could hear what others say.

A process that gets no processor, by a limit or on a busy node, reads nothing for a while. Whoever
would count that as the silence of others takes a whole fleet for gone, and what is then done about
it costs more than what there was no time for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

LOOK_S: Final = 1.0
"""The event loop is looked at so often."""
HEARD_S: Final = 1.5
"""Of the time between two looks at most so much counts: in the rest nothing was read."""


class Attention:
    """Monotonic seconds of ``clock`` without those in which the event loop did not run.

    It goes on only while `keep` runs.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._looked_at = self._heard = clock()

    def now(self) -> float:
        """Return the time; it never runs backwards, nor faster than the clock."""
        return self._heard + min(HEARD_S, self._clock() - self._looked_at)

    async def keep(self) -> None:
        """Look at the event loop, for ever."""
        while True:
            await self._sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Count the time since the last look."""
        self._heard = self.now()
        self._looked_at = self._clock()
