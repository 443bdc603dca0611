"""Finds the longest declared system text that a request's begins with.

Texts are kept in the order of their bytes. The last one that is not after the request's text, or
one of the texts that this one begins with, is the longest head; so a lookup takes a few comparisons
of bytes, however many texts there are and however they begin with each other.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Place: TypeAlias = tuple[bytes, bytes]
"""What must be equal, as a digest, and how the system text begins."""

_NOWHERE: Place = (b"", b"")
_ROOT = 0
"""Place of no text, below all others."""
_EMPTY = b'"'


def opening(system: bytes) -> bytes:
    """Return what `system_bytes` makes of a text without its end, so that it may go on."""
    return system[:-1]


@dataclass(frozen=True, slots=True)
class DeclaredHead:
    """A declared system text in its `Frame` (by digest), and its fingerprint."""

    frame: bytes
    place: Place = field(repr=False)
    fingerprint: str

    @classmethod
    def of(cls, frame: bytes, owner: str, begun: bytes, fingerprint: str) -> DeclaredHead | None:
        """Return the head of a text with that `opening`; None for the empty text."""
        return None if begun == _EMPTY else cls(frame, _place(frame, owner, begun), fingerprint)


class HeadIndex:
    """Declared texts by frame, owner and head; never changed, only replaced."""

    def __init__(self, heads: Iterable[DeclaredHead] = ()) -> None:
        self._heads = {head.place: head for head in heads}
        self._frames = frozenset(head.frame for head in self._heads.values())
        self._places = [_NOWHERE, *sorted(self._heads)]
        self._parents, self._jumps = _nested(self._places)

    def __len__(self) -> int:
        return len(self._heads)

    def replaced(self, heads: Iterable[DeclaredHead]) -> HeadIndex:
        """Return an index of other heads, faster where most are the same."""
        given = {head.place: head for head in heads}
        kept = [given.pop(place) for place in self._places if place in given]
        return HeadIndex((*kept, *given.values()))

    def knows(self, frame: bytes) -> bool:
        """Return whether a text is declared in that frame."""
        return frame in self._frames

    def longest(self, frame: bytes, owner: str, system: bytes) -> str | None:
        """Return the fingerprint of the longest text with which ``system`` begins, if any.

        ``system`` is what `system_bytes` makes of a text.
        """
        text = _place(frame, owner, opening(system))
        at = bisect_right(self._places, text) - 1
        while not _begins(text, self._places[at]):
            # A text that is no head begins no head either: down the nest it is no, ..., no, yes.
            below = self._jumps[at]
            at = self._parents[at] if _begins(text, self._places[below]) else below
        return None if at == _ROOT else self._heads[self._places[at]].fingerprint


def _place(frame: bytes, owner: str, begun: bytes) -> Place:
    return hashlib.sha256(frame + owner.encode()).digest(), begun


def _begins(text: Place, head: Place) -> bool:
    return head is _NOWHERE or (text[0] == head[0] and text[1].startswith(head[1]))


def _nested(places: list[Place]) -> tuple[list[int], list[int]]:
    """Return of each text the longest other one that it begins with, and one further below.

    The latter are the jump pointers of Myers' skew-binary stacks (1983): with them a search down a
    nest of n texts takes O(log n) steps.
    """
    parents, jumps, depths, nest = [_ROOT], [_ROOT], [0], [_ROOT]
    for index, text in enumerate(places[1:], start=1):
        while not _begins(text, places[nest[-1]]):
            nest.pop()
        parent = nest[-1]
        below = jumps[parent]
        even = depths[parent] - depths[below] == depths[below] - depths[jumps[below]]
        parents.append(parent)
        jumps.append(jumps[below] if even else parent)
        depths.append(depths[parent] + 1)
        nest.append(index)
    return parents, jumps
