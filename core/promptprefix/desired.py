"""What one pod is told to hold, changed by one resource at a time."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TypeAlias

from promptprefix.wire import Placement

Rank: TypeAlias = tuple[str, str]
"""Name and uid of a resource: their order is that of a pod's placements."""


class Desired:
    """The placements of one pod, those of each resource together, in the order of ranks."""

    __slots__ = ("_placements", "_ranks", "_told")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._told: list[tuple[Placement, ...]] = []
        self._placements: tuple[Placement, ...] | None = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All of them; the same object as long as nothing else was told."""
        if self._placements is None:
            self._placements = tuple(chain.from_iterable(self._told))
        return self._placements

    def tell(self, rank: Rank, placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
        """Say what it is to hold of one resource; return what it was before."""
        ranks, told = self._ranks, self._told
        # Resources come in their order where all is told for the first time.
        at = len(ranks)
        if ranks and ranks[-1] >= rank:
            at = bisect_left(ranks, rank)
        found = at < len(ranks) and ranks[at] == rank
        before = told[at] if found else ()
        if len(before) == len(placements) and before == placements:
            return before
        self._placements = None
        if not placements:
            del ranks[at], told[at]
        elif found:
            told[at] = placements
        else:
            ranks.insert(at, rank)
            told.insert(at, placements)
        return before
