"""How busy each endpoint is: what Envoy counts, our picks since, and what others send."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from promptprefix_router.choosing.stay import Stay

MOST_TIMED = 8192
"""Picks whose time is remembered. Others count until the next reading."""


@dataclass(frozen=True)
class LoadReading:
    """What Envoy said: active requests per address, where there are any, and who is unhealthy.

    ``served`` is how many requests the endpoints were sent, all together, since Envoy began.
    """

    active: Mapping[str, int] = field(default_factory=dict)
    unhealthy: frozenset[str] = frozenset()
    served: int = 0


class LoadLedger:
    """Load per address, in requests. Bounded by the endpoints that have a seat.

    A reading takes time: a pick made after Envoy was asked may or may not be in the answer, and
    counts on top of it; one made before is in it. Others' requests are what the engine itself has
    beyond these.

    Where requests take less time than readings are apart (`Stay`), a pick counts for that time
    only, and a request that a reading showed makes room for a newer one when it is that old. Of
    the picks before a reading the latest are taken for those that it shows. All of this is assumed,
    so an endpoint never has less than the last reading said, nor more than that and all picks
    since. Requests that suddenly take longer are counted for too short a time until the next
    reading shows them.

    Seats are bits of masks. Those of equal load are kept in one mask, so that the least loaded of
    many are found by a few operations on bits, however many endpoints there are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stay = Stay()
        self._stay_s: float | None = None
        self._reading = LoadReading()
        self._picks_before: Counter[str] = Counter()
        self._picks_after: Counter[str] = Counter()
        self._others: dict[str, int] = {}
        self._timed: deque[tuple[float, str, int]] = deque()
        """Time, address, and how often Envoy had been asked before; the oldest pick first."""
        self._ended: Counter[str] = Counter()
        """Requests of the last reading that are thought to have ended."""
        self._picks_ended = False
        self._asked = 0
        self._asked_at = 0.0
        self._answered = 0
        self._seats: Mapping[str, int] = {}
        self._load: dict[int, int] = {}
        self._levels: dict[int, int] = {}
        self._order: list[int] = []
        self._unhealthy = 0

    def load(self, address: str) -> int:
        """Return the requests that are believed to be active on ``address``."""
        self.forget_ended()
        return self._count(address)

    def own(self, address: str) -> int:
        """Return those of them that came by this router."""
        self.forget_ended()
        return self._count_own(address)

    @property
    def unhealthy(self) -> int:
        """Mask of the seats whose health checks by Envoy fail, as far as known."""
        return self._unhealthy

    @property
    def endpoints(self) -> int:
        """How many endpoints have a seat."""
        return len(self._seats)

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
            self._picks_ended
            or any(self._picks_before.values())
            or any(self._picks_after.values())
            or any(self._reading.active.values())
        )

    def below(self, load: int) -> int:
        """Return the mask of the seats with less load, as of the last `forget_ended`."""
        mask = 0
        for level in self._order:
            if level >= load:
                break
            mask |= self._levels[level]
        return mask

    def total(self, mask: int) -> int:
        """Return the load of all seats of ``mask`` together, as of the last `forget_ended`."""
        found = 0
        for load, seats in self._levels.items():
            found += load * (seats & mask).bit_count()
        return found

    def least(self, mask: int) -> tuple[int, int]:
        """Return the least load of the seats of ``mask``, which has some, and which have it.

        As of the last `forget_ended`.
        """
        levels = self._levels
        for load in self._order:
            found = levels[load] & mask
            if found:
                return load, found
        raise ValueError("no such seat")

    def forget_ended(self) -> None:
        """Count no more the picks whose requests should have ended by now."""
        stay, timed = self._stay_s, self._timed
        if stay is None or not timed:
            return
        since = self._clock() - stay
        while timed and timed[0][0] < since:
            _, address, asked = timed.popleft()
            if asked < self._answered:
                self._ended[address] += 1
            else:
                book = self._picks_before if asked < self._asked else self._picks_after
                book[address] -= 1
                self._picks_ended = True
            self._update(address)

    def pick(self, address: str) -> None:
        """Count a request that goes to ``address``."""
        self._picks_after[address] += 1
        if self._stay_s is None:
            self._move(address, 1)
            return
        if len(self._timed) < MOST_TIMED:
            self._timed.append((self._clock(), address, self._asked))
        self._update(address)

    def end(self, address: str) -> None:
        """Count a pick no more: its request has ended, and there are no readings to tell."""
        if self._picks_after[address] > 0:
            self._picks_after[address] -= 1
            self._update(address)

    def count_others(self, address: str, requests: int) -> None:
        """Count so many requests on ``address`` that came by others, instead of those before."""
        if address in self._seats:
            self._others.pop(address, None)
            if requests:
                self._others[address] = requests
            self._update(address)

    def begin_reading(self) -> None:
        """Note that Envoy is being asked now."""
        self._picks_before += self._picks_after
        self._picks_after.clear()
        self._asked += 1
        self._asked_at = self._clock()

    def finish_reading(self, reading: LoadReading) -> None:
        """Take Envoy's answer to the question of the last `begin_reading`."""
        self._reading = reading
        self._picks_before.clear()
        self._ended.clear()
        self._picks_ended = False
        self._answered = self._asked
        self._stay.note(self._asked_at, sum(reading.active.values()), reading.served)
        self._stay_s = self._stay.seconds
        self._timed = self._still_timed()
        self._arrange()

    def seat(self, seats: Mapping[str, int]) -> None:
        """Count for these addresses and their seats from now on, and forget the others."""
        self._seats = dict(seats)
        picks = (self._picks_before, self._picks_after, self._ended)
        books: tuple[dict[str, int], ...] = (*picks, self._others)
        for book in books:
            for address in book.keys() - self._seats.keys():
                del book[address]
        self._timed = deque(pick for pick in self._timed if pick[1] in self._seats)
        self._arrange()

    def _count(self, address: str) -> int:
        return self._count_own(address) + self._others.get(address, 0)

    def _count_own(self, address: str) -> int:
        since = self._picks_before.get(address, 0) + self._picks_after.get(address, 0)
        newer = max(0, since - self._ended.get(address, 0))
        return self._reading.active.get(address, 0) + newer

    def _still_timed(self) -> deque[tuple[float, str, int]]:
        """Return the picks that the reading doesn't hold, and those taken for what it shows.

        One that is too old by now has outlived its time, and stays as long as it is seen.
        """
        stay = self._stay_s
        found: deque[tuple[float, str, int]] = deque()
        if stay is None:
            return found
        shown = dict(self._reading.active)
        for pick in reversed(self._timed):
            at, address, asked = pick
            if asked < self._answered:
                if at < self._asked_at - stay:
                    break
                if not shown.get(address):
                    continue
                shown[address] -= 1
            found.appendleft(pick)
        return found

    def _arrange(self) -> None:
        self._load = {seat: self._count(address) for address, seat in self._seats.items()}
        self._levels = {}
        for seat, load in self._load.items():
            self._levels[load] = self._levels.get(load, 0) | 1 << seat
        self._order = sorted(self._levels)
        gone = (self._seats.get(address) for address in self._reading.unhealthy)
        self._unhealthy = sum(1 << seat for seat in gone if seat is not None)

    def _update(self, address: str) -> None:
        seat = self._seats.get(address)
        if seat is not None and (by := self._count(address) - self._load[seat]):
            self._move(address, by)

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
