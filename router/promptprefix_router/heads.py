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

_ROOT = 0
"""Place of the empty text, with which all begin."""
_EMPTY = b'""'


@dataclass(frozen=True, slots=True)
class DeclaredHead:
    """A declared system text in its `Frame` (by digest), and its fingerprint.

    ``begun`` is what the texts that begin with it begin with, a secret.
    """

    frame: bytes
    begun: bytes = field(repr=False)
    fingerprint: str

    @classmethod
    def of(cls, frame: bytes, salt: str, system: bytes, fingerprint: str) -> DeclaredHead | None:
        """Return the head of what `system_bytes` made of a text; None for the empty text."""
        if system == _EMPTY:
            return None
        return cls(frame, _begun(frame, salt, system), fingerprint)


class HeadIndex:
    """Declared texts by frame, salt and head; never changed, only replaced."""

    def __init__(self, heads: Iterable[DeclaredHead] = ()) -> None:
        self._heads = {head.begun: head for head in heads}
        self._frames = frozenset(head.frame for head in self._heads.values())
        self._texts = [b"", *sorted(self._heads)]
        self._parents, self._jumps = _nested(self._texts)

    def replaced(self, heads: Iterable[DeclaredHead]) -> HeadIndex:
        """Return an index of other heads, faster where most are the same."""
        given = {head.begun: head for head in heads}
        kept = [given.pop(text) for text in self._texts if text in given]
        return HeadIndex((*kept, *given.values()))

    def __len__(self) -> int:
        return len(self._texts) - 1

    def knows(self, frame: bytes) -> bool:
        """Return whether a text is declared in that frame."""
        return frame in self._frames

    def longest(self, frame: bytes, salt: str, system: bytes) -> str | None:
        """Return the fingerprint of the longest text with which ``system`` begins, if any."""
        text = _begun(frame, salt, system)
        at = bisect_right(self._texts, text) - 1
        while not text.startswith(self._texts[at]):
            # A text that is no head begins no head either: down the nest it is no, ..., no, yes.
            below = self._jumps[at]
            at = self._parents[at] if text.startswith(self._texts[below]) else below
        found = self._heads.get(self._texts[at])
        return found.fingerprint if found is not None else None


def _begun(frame: bytes, salt: str, system: bytes) -> bytes:
    """Return what is compared: what must be equal, and the string without its closing quote."""
    return hashlib.sha256(frame + salt.encode()).digest() + system[:-1]


def _nested(texts: list[bytes]) -> tuple[list[int], list[int]]:
    """Return of each text the longest other one that it begins with, and one further below.

    The latter are the jump pointers of Myers' skew-binary stacks (1983): with them a search down a
    nest of n texts takes O(log n) steps.
    """
    parents, jumps, depths, nest = [_ROOT], [_ROOT], [0], [_ROOT]
    for index, text in enumerate(texts[1:], start=1):
        while not text.startswith(texts[nest[-1]]):
            nest.pop()
        parent = nest[-1]
        below = jumps[parent]
        even = depths[parent] - depths[below] == depths[below] - depths[jumps[below]]
        parents.append(parent)
        jumps.append(jumps[below] if even else parent)
        depths.append(depths[parent] + 1)
        nest.append(index)
    return parents, jumps
