"""Bodies that were read before, but for their later turns: what they declare need not be read anew.

An opening is all of a body that stands before the second turn and after the last one. A body that
begins and ends with these bytes, and has only turns between them, has the same fields with the same
values, but for the turns that no prefix depends on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from promptprefix_router.matching.body_slices import ABSENT
from promptprefix_router.traces import Traces

OPENINGS_BYTES = 32 * 1024 * 1024
"""How much is remembered of the bodies of one API."""

OVERHEAD_BYTES = 5 * 1024
"""What an end takes beside its bytes, with what it declares and what follows from it, roughly."""

MOST_ENDS = 4
"""Ways in which bodies end that begin alike: what clients put after the turns seldom changes."""
SELDOM = 16
"""When they end in more ways, one body in so many is remembered in place of the oldest."""

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_FIRST = b"[{}"
_END = b"]"
_MARK = b"[]"

_Head = TypeVar("_Head")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Opening(Generic[_Head]):
    """All of a body but its later turns, and what it declares.

    Others may keep what follows from it as long as it is remembered.
    """

    before: bytes = field(repr=False)
    end: bytes = field(repr=False)
    head: _Head
    traces: Traces
    size: int
    """Bytes that it takes beside ``before``, with what it declares as if that were its alone."""


class Known(NamedTuple, Generic[_Head]):
    """A body with an opening that is remembered: all that is new of it are its later turns."""

    opening: Opening[_Head]
    turns: bytes
    traces: Traces
    """Those of the body."""


@dataclass(slots=True)
class _Beginning(Generic[_Head]):
    """How bodies with the same beginning end, and what they declare; the oldest first."""

    ends: list[Opening[_Head]] = field(default_factory=list, repr=False)
    passed: int = 0

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ends)


class Openings(Generic[_Head]):
    """Openings of bodies of one API, at most ``capacity`` bytes; what was used last stays.

    ``conversation`` is the field with the turns. ``weigh`` tells the bytes of what a body declares.
    """

    def __init__(
        self,
        conversation: str,
        capacity: int = OPENINGS_BYTES,
        weigh: Callable[[_Head], int] = lambda _: 0,
    ) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._known: OrderedDict[bytes, _Beginning[_Head]] = OrderedDict()
        # No beginning begins another one, so the last that is not after a body is the only one
        # with which it may begin.
        self._sorted: list[bytes] = []
        self._size = 0
        struct = msgspec.defstruct("Turns", [(conversation, msgspec.Raw, ABSENT)])
        self._decoder = msgspec.json.Decoder(struct)
        self._conversation = conversation

    @property
    def size(self) -> int:
        """Bytes that are remembered."""
        return self._size

    def find(self, body: bytes) -> Known[_Head] | None:
        """Return the opening of such a body, if it is remembered."""
        at = bisect_right(self._sorted, body) - 1
        if at < 0 or not body.startswith(before := self._sorted[at]):
            return None
        room = len(body) - len(before)
        found = None
        for each in self._known[before].ends:
            # One end may be the tail of another; of these the longest is the body's.
            longer = found is None or len(each.end) > len(found.end)
            if longer and len(each.end) <= room and body.endswith(each.end):
                found = each
        if found is None:
            return None
        turns = body[len(before) : len(body) - len(found.end)]
        try:
            _LIST.decode(b"%s%s%s" % (_FIRST, turns, _END))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        self._known.move_to_end(before)
        return Known(found, turns, Traces.of(turns).and_of(found.traces))

    def remember(self, body: bytes, first: bytes, head: _Head) -> None:
        """Remember the opening of ``body``, in which no field of that API stands twice.

        ``first`` is the raw text of its first turn.
        """
        opening = self._opening(body, first)
        weight = self._weigh(head)
        if opening is None or weight + sum(map(len, opening)) > self._capacity // MOST_ENDS:
            return
        before, end = opening
        known = self._known.get(before)
        if known is None:
            known = self._known[before] = _Beginning()
            insort(self._sorted, before)
            self._size += len(before)
        elif any(end == each.end for each in known.ends):
            return
        if len(known.ends) == MOST_ENDS:
            known.passed += 1
            if known.passed % SELDOM:
                return
            self._size -= known.ends.pop(0).size
        # Most declare the same: that is kept once.
        alike = next((each.head for each in known.ends if each.head == head), head)
        traces = Traces.of(before).and_of(Traces.of(end))
        size = OVERHEAD_BYTES + len(end) + weight
        known.ends.append(Opening(before, end, alike, traces, size))
        self._size += known.ends[-1].size
        while self._size > self._capacity:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        before, gone = self._known.popitem(last=False)
        del self._sorted[bisect_left(self._sorted, before)]
        self._size -= len(before) + gone.size

    def _opening(self, body: bytes, first: bytes) -> tuple[bytes, bytes] | None:
        turns = bytes(getattr(self._decoder.decode(body), self._conversation))
        start = body.find(turns)
        end = start + len(turns)
        within = turns.find(first, 1)
        if within < 0 or turns[1:within].strip():
            return None
        # The same text may stand elsewhere as well: with a mark in its place the field must be it.
        marked = self._decoder.decode(body[:start] + _MARK + body[end:])
        if bytes(getattr(marked, self._conversation)) != _MARK:
            return None
        return body[: start + within + len(first)], body[end - 1 :]
