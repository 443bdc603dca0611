"""Which endpoints were sent which prompts: an estimate of what their engines have cached.

Of each endpoint as much is remembered as its engine can hold, the least recently sent goes first,
from its end to its beginning, as in the engine. So what is remembered of a prompt is always a
beginning of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_AGE_S = 3600.0
"""Nothing older is believed: others may have filled an engine's cache unseen."""

FRESH_S = 1.0
"""A chunk that was sent so lately, and with it all before it, need not be moved up again."""

_SPARE = 16
"""Old chunks that a note removes beyond as many as it adds."""


class PromptHistory:
    """Chunks by endpoint. Endpoints are seats: small numbers, bits of a mask.

    ``capacity`` bounds all chunks together, in equal shares; a chunk takes about 350 bytes.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._share = capacity
        self._rooms: dict[int, int] = {}
        self._books: dict[int, OrderedDict[int, float]] = {}
        self._holders: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(book) for book in self._books.values())

    def resize(self, rooms: dict[int, int]) -> None:
        """Remember for these seats; ``rooms`` are the chunks that each engine can hold, or 0."""
        for seat in self._books.keys() - rooms.keys():
            self.forget(seat)
        self._share = self._capacity // max(1, len(rooms))
        self._rooms = rooms
        for seat, book in self._books.items():
            self._shrink(seat, book, self._room(seat))

    def forget(self, seat: int) -> None:
        """Forget what was sent to ``seat``: another engine is there, or an empty one."""
        book = self._books.pop(seat, None)
        if book is not None:
            self._shrink(seat, book, 0)

    def note(self, seat: int, hashes: Sequence[int], now: float) -> None:
        """Remember that a prompt with these chunks was sent to ``seat``."""
        room = self._room(seat)
        book = self._books.get(seat)
        if book is None:
            book = self._books[seat] = OrderedDict()
        bit = 1 << seat
        holders = self._holders
        # Backwards, so that the beginning is the last to go.
        for each in reversed(hashes[:room]):
            known = book.get(each)
            if known is None:
                holders[each] = holders.get(each, 0) | bit
            elif now - known < FRESH_S:
                break
            else:
                book.move_to_end(each)
            book[each] = now
        self._shrink(seat, book, room)
        self._expire(seat, book, now, len(hashes) + _SPARE)

    def depths(self, hashes: Sequence[int], among: int) -> list[tuple[int, int]]:
        """Return how many chunks of a prompt which seats have seen, most first.

        Pairs of a number and the mask of the seats for which it is exactly that, of those of the
        mask ``among`` that have seen any.
        """
        groups: list[tuple[int, int]] = []
        left = among
        depth = 0
        holders = self._holders
        for each in hashes:
            still = left & holders.get(each, 0)
            if still != left:
                if depth:
                    groups.append((depth, left ^ still))
                left = still
                if not left:
                    break
            depth += 1
        if left and depth:
            groups.append((depth, left))
        groups.reverse()
        return groups

    def _room(self, seat: int) -> int:
        known = self._rooms.get(seat, 0)
        return min(known, self._share) if known else self._share

    def _expire(self, seat: int, book: OrderedDict[int, float], now: float, most: int) -> None:
        for _ in range(most):
            if not book or now - next(iter(book.values())) <= MAX_AGE_S:
                return
            self._drop(seat, book)

    def _shrink(self, seat: int, book: OrderedDict[int, float], room: int) -> None:
        while len(book) > room:
            self._drop(seat, book)

    def _drop(self, seat: int, book: OrderedDict[int, float]) -> None:
        each, _ = book.popitem(last=False)
        left = self._holders[each] & ~(1 << seat)
        if left:
            self._holders[each] = left
        else:
            del self._holders[each]
