"""Prefixes whose use is counted though nothing holds their blocks any more.

A released prefix is wanted again when users ask for it, cached or not; only the scheduler sees
every request's block hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from promptprefix_vllm.adapters import Adapter

MAX_WATCHED: Final = 256


@dataclass(frozen=True, kw_only=True)
class Watched:
    """hashes: the prefix's chained block hashes. last_match: monotonic seconds.

    matches: requests of users that began with the whole prefix, whether it was cached or not.
    """

    id: str
    hashes: tuple[bytes, ...]
    adapter: Adapter | None = None
    matches: int = 0
    last_match: float | None = None

    def begins(self, hashes: Sequence[bytes]) -> bool:
        """Whether a request begins with this prefix.

        Block hashes are chained: if the prefix's last one is equal, so are all before it.
        """
        last = len(self.hashes) - 1
        return last < len(hashes) and hashes[last] == self.hashes[last]


class Watchlist:
    """At most `MAX_WATCHED` prefixes; the one that was added first makes room."""

    def __init__(self) -> None:
        self._watched: OrderedDict[str, Watched] = OrderedDict()

    @property
    def entries(self) -> tuple[Watched, ...]:
        return tuple(self._watched.values())

    def get(self, pin_id: str) -> Watched | None:
        return self._watched.get(pin_id)

    def add(self, entry: Watched) -> None:
        self._watched.pop(entry.id, None)
        self._watched[entry.id] = Watched(
            id=entry.id,
            hashes=entry.hashes,
            adapter=entry.adapter,
            matches=entry.matches,
            last_match=entry.last_match,
        )
        if len(self._watched) > MAX_WATCHED:
            self._watched.popitem(last=False)

    def discard(self, pin_id: str) -> None:
        self._watched.pop(pin_id, None)

    def record(self, hashes: Sequence[bytes], now: float) -> None:
        """Counts one request of a user."""
        for entry in self.entries:
            if entry.begins(hashes):
                counted = replace(entry, matches=entry.matches + 1, last_match=now)
                self._watched[entry.id] = counted
