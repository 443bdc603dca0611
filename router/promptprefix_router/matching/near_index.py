"""Finds the declared prefix that an undeclared request comes nearest to."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from promptprefix.near_miss import shared_head
from promptprefix_router.matching.texts import KnownPrefix, Texts

MIN_SHARED = 256
"""Bytes of a system text that make a request near a prefix; half of a shorter text will do."""
LEAST_SHARED = 32
"""A text may be shorter than twice this; less in common says nothing."""
TAIL_BYTES = 1024
"""Of this many last bytes of each text an index is kept: a date at its start leaves them alike."""
NEIGHBOURS = 4
"""Texts on either side of a place in an index that are compared."""


class NearIndex:
    """Declared texts by how they begin and how they end; never changed, only replaced."""

    def __init__(self, texts: Texts) -> None:
        self._known = [each for each in texts.known if each.text.payload.system]
        openings = sorted(range(len(self._known)), key=lambda n: self._known[n].text.begun)
        self._by_head = openings
        self._heads = [self._known[number].text.begun for number in openings]
        tails = sorted((_tail(each.text.begun), n) for n, each in enumerate(self._known))
        self._by_tail = [number for _, number in tails]
        self._tails = [tail for tail, _ in tails]

    def nearest(self, begun: bytes, model: str) -> KnownPrefix | None:
        """Return the prefix with most of the text in common, one of the same model first.

        ``begun`` is the `opening` of the request's system text.
        """
        candidates = {
            number
            for places, keys, key in (
                (self._by_head, self._heads, begun),
                (self._by_tail, self._tails, _tail(begun)),
            )
            for number in _around(places, keys, key)
        }
        ranked = []
        for number in candidates:
            known = self._known[number]
            shared = _shared(known.text.begun, begun)
            if shared >= max(LEAST_SHARED, min(MIN_SHARED, len(known.text.begun) // 2)):
                ranked.append((known.text.model == model, shared, -number))
        best = heapq.nlargest(1, ranked)
        return self._known[-best[0][2]] if best else None


def _tail(begun: bytes) -> bytes:
    return begun[: -TAIL_BYTES - 1 : -1]


def _around(places: Sequence[int], keys: Sequence[bytes], key: bytes) -> Iterator[int]:
    at = bisect_left(keys, key)
    yield from places[max(0, at - NEIGHBOURS) : at + NEIGHBOURS]


def _shared(one: bytes, other: bytes) -> int:
    """Return the bytes in common at the beginning or at the end, whichever are more."""
    head = shared_head(one, other)
    return max(head, shared_head(_tail(one), _tail(other)))
