"""Which pods hold which blocks, by what their engines tell, and what they were just sent.

A block is known by a name that stands for all tokens up to its end, so equal names are equal
beginnings of prompts. Pods are known by their addresses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

EXPECTED_S = 10.0
"""How long blocks of a prompt that was just sent to a pod count as held there, until its engine
tells of them: it may have others to compute first."""

MOST_OF_POD = 131_072
"""Names of one pod, four times what its sidecar tells at most: one can't take the room of all."""

MOST_EXPECTED = 131_072
"""Blocks that are expected at a time, of all pods; the oldest go first."""

_SLICE = 4096
"""Names that one step of a sweep looks at."""


class BlockIndex:
    """Names of blocks, each with the mask of the pods that hold it; ``capacity`` bounds the names.

    Each pod has a bit. What a pod held is dropped at once by giving it another bit; the old one is
    swept out in slices before it is used again. A name beyond the capacity is counted and left out.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._holders: dict[bytes, int] = {}
        self._bits: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._expected: dict[bytes, int] = {}
        self._deadlines: deque[tuple[float, bytes, int]] = deque()
        self._used = 0
        self._retired = 0
        self._sweep: Iterator[None] | None = None
        self._sweeping = 0
        self._seats: Mapping[str, int] = {}
        self._to_bits: dict[int, int] = {}
        self._to_seats: dict[int, int] = {}
        self.dropped = 0
        """Names that were left out because there was no room, since ever."""

    def __len__(self) -> int:
        return len(self._holders)

    def held(self, pod: str) -> int:
        """Return how many names are known of a pod."""
        return self._counts.get(pod, 0)

    def seat(self, seats: Mapping[str, int]) -> None:
        """Say on which seats the pods are from now on; masks of `depths` are masks of seats."""
        self._seats = seats
        self._forget_translations()

    def add(self, pod: str, names: Collection[bytes]) -> bool:
        """Take note that a pod holds ``names``; return whether there was room for all."""
        bit = self._bit(pod)
        holders, new, left_out = self._holders, 0, 0
        room = MOST_OF_POD - self._counts[pod]
        for name in names:
            mask = holders.get(name, 0)
            if mask & bit:
                continue
            if new >= room or not (mask or len(holders) < self._capacity):
                left_out += 1
                continue
            holders[name] = mask | bit
            new += 1
        self._counts[pod] += new
        self.dropped += left_out
        return not left_out

    def remove(self, pod: str, names: Collection[bytes]) -> None:
        """Take note that a pod holds ``names`` no more."""
        bit = self._bit(pod)
        holders, gone = self._holders, 0
        for name in names:
            self._expect_no_more(name, bit)
            mask = holders.get(name, 0)
            if mask & bit:
                _put(holders, name, mask & ~bit)
                gone += 1
        self._counts[pod] -= gone

    def empty(self, pod: str) -> None:
        """Take note that a pod holds nothing, or that nothing is known of it."""
        bit = self._bits.pop(pod, 0)
        self._counts.pop(pod, None)
        self._retired |= bit
        self._forget_translations()

    def expect(self, pod: str, names: Sequence[bytes], now: float) -> None:
        """Take note that a prompt with these blocks was sent to a pod."""
        self._expire(now)
        bit = self._bit(pod)
        holders, expected = self._holders, self._expected
        for name in names:
            mask = expected.get(name, 0)
            if not (holders.get(name, 0) | mask) & bit:
                expected[name] = mask | bit
                self._deadlines.append((now + EXPECTED_S, name, bit))
        while len(self._deadlines) > MOST_EXPECTED:
            _, name, bit = self._deadlines.popleft()
            self._expect_no_more(name, bit)

    def depths(self, names: Sequence[bytes], among: int, now: float) -> list[tuple[int, int]]:
        """Return how many leading ``names`` which seats hold or are expected to, most first.

        Pairs of a number and the mask of the seats for which it is exactly that, of those of the
        mask ``among`` that hold any.
        """
        self._expire(now)
        groups: list[tuple[int, int]] = []
        left, depth = self._bits_of(among), 0
        holders, expected = self._holders, self._expected
        for name in names:
            still = left & (holders.get(name, 0) | expected.get(name, 0))
            if still != left:
                if depth:
                    groups.append((depth, self._seats_of(left ^ still)))
                left = still
                if not left:
                    break
            depth += 1
        if left and depth:
            groups.append((depth, self._seats_of(left)))
        groups.reverse()
        return groups

    @property
    def unswept(self) -> bool:
        """Whether there is something for `sweep` to do."""
        return bool(self._retired or self._sweeping)

    def sweep(self) -> None:
        """Do one step of what takes names out that nobody holds any more."""
        if self._sweep is None:
            self._sweeping, self._retired = self._retired, 0
            self._sweep = self._swept(self._sweeping)
        if next(self._sweep, self) is self:
            self._sweep = None
            self._used &= ~self._sweeping
            self._sweeping = 0

    def _swept(self, bits: int) -> Iterator[None]:
        for names in (self._holders, self._expected):
            every = list(names)
            for start in range(0, len(every), _SLICE):
                for name in every[start : start + _SLICE]:
                    mask = names.get(name, 0)
                    if mask & bits:
                        _put(names, name, mask & ~bits)
                yield
        self._deadlines = deque(each for each in self._deadlines if not each[2] & bits)

    def _bit(self, pod: str) -> int:
        bit = self._bits.get(pod)
        if bit is None:
            bit = ~self._used & (self._used + 1)
            self._used |= bit
            self._bits[pod] = bit
            self._counts[pod] = 0
            self._forget_translations()
        return bit

    def _expire(self, now: float) -> None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, name, bit = deadlines.popleft()
            self._expect_no_more(name, bit)

    def _expect_no_more(self, name: bytes, bit: int) -> None:
        mask = self._expected.get(name, 0)
        if mask & bit:
            _put(self._expected, name, mask & ~bit)

    def _forget_translations(self) -> None:
        self._to_bits.clear()
        self._to_seats.clear()

    def _bits_of(self, seats: int) -> int:
        """Return the bits of the pods on the seats of a mask; few masks are ever asked for."""
        bits = self._to_bits.get(seats)
        if bits is None:
            known = ((self._seats.get(pod, -1), bit) for pod, bit in self._bits.items())
            bits = sum(bit for seat, bit in known if seat >= 0 and seats >> seat & 1)
            _remember(self._to_bits, seats, bits)
        return bits

    def _seats_of(self, bits: int) -> int:
        seats = self._to_seats.get(bits)
        if seats is None:
            seats = sum(1 << self._seats[pod] for pod, bit in self._bits.items() if bit & bits)
            _remember(self._to_seats, bits, seats)
        return seats


_MOST_TRANSLATIONS = 4096


def _remember(translations: dict[int, int], mask: int, other: int) -> None:
    if len(translations) >= _MOST_TRANSLATIONS:
        translations.clear()
    translations[mask] = other


def _put(names: dict[bytes, int], name: bytes, mask: int) -> None:
    if mask:
        names[name] = mask
    else:
        del names[name]
