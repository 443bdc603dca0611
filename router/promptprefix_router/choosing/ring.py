"""Consistent hashing: every picker finds the same endpoint for a key, without talking.

With bounded loads (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2016) an
endpoint that is full is passed over, and the next one on the ring is the same for all as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from hashlib import blake2b

_CIRCLE = 1 << 64
_PLACE_BYTES = 8
_DIGESTS = 4
PLACES = _DIGESTS * blake2b.MAX_DIGEST_SIZE // _PLACE_BYTES
"""Places of one endpoint on the ring."""

_FEW = 16
"""So many seats are looked up one by one; more of them are met soon on a walk."""


def place_of(key: bytes) -> int:
    """Return the place of ``key`` on every ring, the same in every process."""
    return int.from_bytes(blake2b(key, digest_size=_PLACE_BYTES).digest())


class Ring:
    """Endpoints by address, each at `PLACES` places. Endpoints are seats: bits of a mask."""

    def __init__(self, seats: Mapping[str, int]) -> None:
        self._own = {seat: _places(address) for address, seat in seats.items()}
        walk = sorted((place, seat) for seat, places in self._own.items() for place in places)
        self._places = [place for place, _ in walk]
        self._seats = [seat for _, seat in walk]

    def first(self, place: int, among: int, count: int) -> list[int]:
        """Return the first seats of the mask ``among`` from ``place`` on, at most ``count``."""
        if among.bit_count() <= _FEW:
            return self._nearest(place, among)[:count]
        found: list[int] = []
        seats = self._seats
        start = bisect_left(self._places, place)
        for index in range(start - len(seats), start):
            seat = seats[index]
            if among >> seat & 1:
                found.append(seat)
                if len(found) == count:
                    break
                among ^= 1 << seat
        return found

    def _nearest(self, place: int, among: int) -> list[int]:
        distances = []
        while among:
            bit = among & -among
            seat = bit.bit_length() - 1
            own = self._own[seat]
            following = bisect_left(own, place)
            distances.append(((own[following % PLACES] - place) % _CIRCLE, seat))
            among ^= bit
        distances.sort()
        return [seat for _, seat in distances]


def _places(address: str) -> list[int]:
    digests = [blake2b(b"%d %s" % (n, address.encode())).digest() for n in range(_DIGESTS)]
    joined = b"".join(digests)
    starts = range(0, len(joined), _PLACE_BYTES)
    return sorted(int.from_bytes(joined[start : start + _PLACE_BYTES]) for start in starts)
