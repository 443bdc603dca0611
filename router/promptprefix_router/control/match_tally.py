"""Counts the requests that matched each version of the route table, until the operator knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from promptprefix.wire import Match


@dataclass(slots=True)
class _Count:
    """Matches of one version: ``count`` of them untold; ``told``: the operator knows the latest."""

    count: int = 0
    at: float = 0.0
    told: bool = True


class MatchTally:
    """Counts by version id, for the versions of the route table alone. ``wall`` is Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._counts: dict[str, _Count] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def retain(self, ids: Collection[str]) -> None:
        """Count for these versions from now on, and forget the others."""
        self._counts = {id_: self._counts.get(id_) or _Count() for id_ in ids}

    def note(self, ids: Collection[str], requests: int = 1) -> None:
        """Count so many requests that matched these versions, the latest of them just now."""
        if not ids:
            return
        now = self._wall()
        for id_ in ids:
            count = self._counts.get(id_)
            if count is not None:
                count.count += requests
                count.at = now
                count.told = False

    def untold(self, most: int) -> tuple[Match, ...]:
        """Return at most so many versions with matches that the operator doesn't know."""
        found = (
            Match(id=id_, count=each.count, at=each.at)
            for id_, each in self._counts.items()
            if not each.told
        )
        return tuple(islice(found, most))

    def tell(self, matches: Iterable[Match]) -> None:
        """Take note that the operator knows these.

        A version may have left the table and come back since they were taken: it counts anew.
        """
        for match in matches:
            count = self._counts.get(match.id)
            if count is not None:
                count.count = max(0, count.count - match.count)
                count.told = not count.count and count.at <= match.at

    def repeat(self) -> None:
        """Take note that the operator knows nothing: the latest matches are untold again."""
        for count in self._counts.values():
            count.told = not count.at
