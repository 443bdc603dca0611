"""Cache salts by placement: secrets, fetched once and kept in memory while they are wanted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from promptprefix.wire import Placement

MAX_SALTS = 4_096


class SaltSource(Protocol):
    """Where salts come from."""

    async def salt(self, placement_id: str) -> str:
        """Return the salt of this placement; raise `ControlError`."""


class Salts:
    """A bounded cache before the control API.

    Another salt is another placement, so one that is known stays true, also while the operator is
    away.
    """

    def __init__(self, source: SaltSource, max_salts: int = MAX_SALTS) -> None:
        self._source = source
        self._max_salts = max_salts
        self._salts: OrderedDict[str, str] = OrderedDict()

    async def get(self, placement: Placement) -> str:
        """Return the salt, empty for a placement without one; raises what the source raises."""
        if not placement.salted:
            return ""
        salt = self._salts.get(placement.id)
        if salt is None:
            salt = await self._source.salt(placement.id)
        self._salts[placement.id] = salt
        self._salts.move_to_end(placement.id)
        while len(self._salts) > self._max_salts:
            self._salts.popitem(last=False)
        return salt

    def keep(self, placement_ids: frozenset[str]) -> None:
        """Drop the salts that no placement needs."""
        for placement_id in self._salts.keys() - placement_ids:
            del self._salts[placement_id]

    def __len__(self) -> int:
        return len(self._salts)
