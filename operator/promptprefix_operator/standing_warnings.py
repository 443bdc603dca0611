"""Warnings that stand as long as something is so: each is told once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from promptprefix_operator.allowance import Allowance
from promptprefix_operator.events import Events, Notice

BURST = 100
SECONDS_EACH = 10.0


class StandingWarnings:
    """Posts each notice once; at most `BURST` at once and then one every `SECONDS_EACH`.

    ``found`` returns what there is to say now. Told notices are remembered as long as they hold.
    """

    def __init__(
        self, found: Callable[[], Iterable[Notice]], events: Events, clock: Callable[[], float]
    ) -> None:
        self._found = found
        self._events = events
        self._allowance = Allowance(clock, BURST, SECONDS_EACH)
        self._told: set[Notice] = set()

    def step(self) -> None:
        """Post what was not told yet, as far as the allowance goes."""
        found = set(self._found())
        self._told &= found
        for notice in sorted(found - self._told, key=lambda each: each.subject.uid):
            if not self._allowance.take():
                return
            self._events.post(notice)
            self._told.add(notice)

    async def run(self, passed: Callable[[], Awaitable[None]]) -> None:
        """Look after each pass, for ever."""
        while True:
            self.step()
            await passed()
