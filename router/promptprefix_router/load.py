"""How busy each endpoint is: what Envoy counts, and our picks since it was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadReading:
    """What Envoy said: active requests per address, and the addresses it finds unhealthy."""

    active: Mapping[str, int] = field(default_factory=dict)
    unhealthy: frozenset[str] = frozenset()


class LoadLedger:
    """Load per address, in requests. Bounded by the endpoints of the route table.

    A reading takes time: a pick made after Envoy was asked may or may not be in the answer, and
    counts on top of it; one made before is in it.
    """

    def __init__(self) -> None:
        self._reading = LoadReading()
        self._picks_before: Counter[str] = Counter()
        self._picks_after: Counter[str] = Counter()
        self._last_pick: dict[str, int] = {}
        self._clock = 0

    def load(self, address: str) -> int:
        """Return the requests that are believed to be active on ``address``."""
        return (
            self._reading.active.get(address, 0)
            + self._picks_before[address]
            + self._picks_after[address]
        )

    def rank(self, address: str) -> tuple[int, int]:
        """Return a sort key: least loaded first, then the one picked longest ago."""
        return self.load(address), self._last_pick.get(address, 0)

    def healthy(self, address: str) -> bool:
        """Return whether Envoy's health checks of ``address`` succeed, as far as known."""
        return address not in self._reading.unhealthy

    @property
    def idle(self) -> bool:
        """Whether nothing is known to be active: a new reading would tell nothing."""
        return not (self._picks_before or self._picks_after or any(self._reading.active.values()))

    def pick(self, address: str) -> None:
        """Count a request that goes to ``address``."""
        self._clock += 1
        self._picks_after[address] += 1
        self._last_pick[address] = self._clock

    def begin_reading(self) -> None:
        """Note that Envoy is being asked now."""
        self._picks_before += self._picks_after
        self._picks_after.clear()

    def finish_reading(self, reading: LoadReading) -> None:
        """Take Envoy's answer to the question of the last `begin_reading`."""
        self._reading = reading
        self._picks_before.clear()

    def retain(self, addresses: Iterable[str]) -> None:
        """Forget every endpoint that is not among ``addresses``."""
        kept = set(addresses)
        for book in (self._picks_before, self._picks_after, self._last_pick):
            for address in book.keys() - kept:
                del book[address]
