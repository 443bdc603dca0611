"""How much room a version takes on a pod: by its own report, by that of others, by estimate.

What pods have reported before counts as what they report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from promptprefix.fleet import Prefix, Size, Version
from promptprefix.heads import NOTHING, Footprint, Head
from promptprefix.resource import Pinning
from promptprefix.roster import Company, Station, size_of

Remembered: TypeAlias = Mapping[str, tuple[Size, ...]]
"""`Snapshot.sizes`."""


def sizes_of(version: Version, company: Company, remembered: Remembered) -> tuple[Size, ...]:
    """Return the different sizes that pods report of a version, or have reported."""
    return tuple(sorted({*company.sizes.get(version.id, ()), *remembered.get(version.id, ())}))


def head_of(prefix: Prefix, version: Version, size: Size) -> Head:
    """Return the blocks of a version of that size."""
    block_size, tokens, heads = size
    scope = f"{prefix.namespace}\n{version.model}\n{version.salt_digest}"
    return Head(scope, block_size, tokens // block_size, heads)


class Sizes:
    """The room of the versions of one resource. What is not pinned takes none.

    ``known`` has the footprints of the sizes that are told, by version.
    """

    def __init__(self, prefix: Prefix, known: Mapping[str, Mapping[Size, Footprint]]) -> None:
        self._pinned = prefix.pinning is not Pinning.NONE
        self._declared = prefix.version
        self._known = known
        self._elsewhere: dict[tuple[str, int], Footprint] = {}
        self._least: dict[frozenset[int], int] = {}
        self._measured = {id_: frozenset(size[0] for size in each) for id_, each in known.items()}
        self.sized = prefix.version is None or bool(known.get(prefix.version.id))

    def declared(self, station: Station) -> Footprint:
        """Return the room of the declared version on a pod."""
        return NOTHING if self._declared is None else self.of(self._declared, station)

    def of(self, version: Version, station: Station) -> Footprint:
        """Return the room of a version on a pod."""
        each = station.candidate
        if each.engine is None or not self._pinned:
            return NOTHING
        state = each.reported.get(version.id)
        size = size_of(state, each.engine) if state is not None else None
        if size is not None:
            return self._known[version.id][size]
        return self._unreported(version, each.engine.block_size)

    def least(self, block_sizes: frozenset[int]) -> int:
        """Return how much room the declared version takes at least on pods of these block sizes.

        That is what it shares with nobody.
        """
        version = self._declared
        if version is None or not self._pinned:
            return 0
        found = self._least.get(block_sizes)
        if found is None:
            footprints = [
                *self._known.get(version.id, {}).values(),
                *(self._unreported(version, block_size) for block_size in block_sizes),
            ]
            found = self._least[block_sizes] = min((each.own for each in footprints), default=0)
        return found

    def measured(self, version: Version) -> frozenset[int]:
        """Return the block sizes of the engines that have told how large the version is."""
        return self._measured.get(version.id, frozenset())

    def _unreported(self, version: Version, block_size: int) -> Footprint:
        """Return the room by the reports of other pods, the largest of several, or by estimate."""
        key = (version.id, block_size)
        found = self._elsewhere.get(key)
        if found is None:
            found = self._elsewhere[key] = self._read(version, block_size)
        return found

    def _read(self, version: Version, block_size: int) -> Footprint:
        if block_size <= 0:
            return NOTHING
        told = self._known.get(version.id, {})
        if same := [size for size in told if size[0] == block_size]:
            return told[max(same)]
        tokens = max((size[1] for size in told), default=version.estimated_tokens)
        blocks = -(-tokens // block_size)
        return Footprint(blocks, blocks)
