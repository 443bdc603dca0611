"""How busy each endpoint is: what Envoy counts, our picks since, and what others send."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadReading:
    """What Envoy said: active requests per address, and the addresses it finds unhealthy.

    ``served`` is how many requests the endpoints were sent, all together.
    """

    active: Mapping[str, int] = field(default_factory=dict)
    unhealthy: frozenset[str] = frozenset()
    served: int = 0


class LoadLedger:
    """Load per address, in requests. Bounded by the endpoints that have a seat.

    A reading takes time: a pick made after Envoy was asked may or may not be in the answer, and
    counts on top of it; one made before is in it. Others' requests are what the engine itself has
    beyond these.

    Seats are bits of masks. Those of equal load are kept in one mask, so that the least loaded of
    many are found by a few operations on bits, however many endpoints there are.
    """

    def __init__(self) -> None:
        self._reading = LoadReading()
        self._picks_before: Counter[str] = Counter()
        self._picks_after: Counter[str] = Counter()
        self._others: dict[str, int] = {}
        self._seats: Mapping[str, int] = {}
        self._load: dict[int, int] = {}
        self._levels: dict[int, int] = {}
        self._order: list[int] = []
        self._unhealthy = 0

    def load(self, address: str) -> int:
        """Return the requests that are believed to be active on ``address``."""
        return self.own(address) + self._others.get(address, 0)

    def own(self, address: str) -> int:
        """Return those of them that came by this router."""
        return (
            self._reading.active.get(address, 0)
            + self._picks_before[address]
            + self._picks_after[address]
        )

    @property
    def unhealthy(self) -> int:
        """Mask of the seats whose health checks by Envoy fail, as far as known."""
        return self._unhealthy

    @property
    def served(self) -> int:
        """How many requests the endpoints had been sent at the last reading."""
        return self._reading.served

    @property
    def others(self) -> int:
        """Requests on all endpoints that came by others, as far as known."""
        return sum(self._others.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is known to be active: a new reading would tell nothing."""
        return not (
            any(self._picks_before.values())
            or any(self._picks_after.values())
            or any(self._reading.active.values())
        )

    def below(self, load: int) -> int:
        """Return the mask of the seats with less load."""
        mask = 0
        for level in self._order:
            if level >= load:
                break
            mask |= self._levels[level]
        return mask

    def total(self, mask: int) -> int:
        """Return the load of all seats of ``mask`` together."""
        return sum(load * (seats & mask).bit_count() for load, seats in self._levels.items())

    def least(self, mask: int) -> tuple[int, int]:
        """Return the least load of the seats of ``mask``, which has some, and which have it."""
        levels = self._levels
        for load in self._order:
            found = levels[load] & mask
            if found:
                return load, found
        raise ValueError("no such seat")

    def pick(self, address: str) -> None:
        """Count a request that goes to ``address``."""
        self._picks_after[address] += 1
        self._move(address, 1)

    def end(self, address: str) -> None:
        """Count a pick no more: its request has ended, and no reading will tell."""
        if self._picks_after[address] > 0:
            self._picks_after[address] -= 1
            self._move(address, -1)

    def count_others(self, address: str, requests: int) -> None:
        """Count so many requests on ``address`` that came by others, instead of those before."""
        if address in self._seats:
            before = self._others.pop(address, 0)
            if requests:
                self._others[address] = requests
            self._move(address, requests - before)

    def begin_reading(self) -> None:
        """Note that Envoy is being asked now."""
        self._picks_before += self._picks_after
        self._picks_after.clear()

    def finish_reading(self, reading: LoadReading) -> None:
        """Take Envoy's answer to the question of the last `begin_reading`."""
        self._reading = reading
        self._picks_before.clear()
        self._arrange()

    def seat(self, seats: Mapping[str, int]) -> None:
        """Count for these addresses and their seats from now on, and forget the others."""
        self._seats = dict(seats)
        books: tuple[dict[str, int], ...] = (self._picks_before, self._picks_after, self._others)
        for book in books:
            for address in book.keys() - self._seats.keys():
                del book[address]
        self._arrange()

    def _arrange(self) -> None:
        self._load = {seat: self.load(address) for address, seat in self._seats.items()}
        self._levels = {}
        for seat, load in self._load.items():
            self._levels[load] = self._levels.get(load, 0) | 1 << seat
        self._order = sorted(self._levels)
        gone = (self._seats.get(address) for address in self._reading.unhealthy)
        self._unhealthy = sum(1 << seat for seat in gone if seat is not None)

    def _move(self, address: str, by: int) -> None:
        seat = self._seats.get(address)
        if seat is not None:
            load = self._load[seat]
            self._leave(load, 1 << seat)
            self._join(load + by, 1 << seat)
            self._load[seat] = load + by

    def _join(self, load: int, bit: int) -> None:
        known = self._levels.get(load)
        if known is None:
            insort(self._order, load)
            self._levels[load] = bit
        else:
            self._levels[load] = known | bit

    def _leave(self, load: int, bit: int) -> None:
        left = self._levels[load] ^ bit
        if left:
            self._levels[load] = left
        else:
            del self._levels[load]
            del self._order[bisect_left(self._order, load)]
