"""How much room a version takes on a pod: by its own report, by that of others, by estimate.

What pods have reported before counts as what they report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from promptprefix.fleet import Prefix, Size, Version
from promptprefix.heads import NOTHING, Families, Footprint, Head
from promptprefix.resource import Pinning
from promptprefix.roster import Company, Station, size_of

Remembered: TypeAlias = Mapping[str, tuple[Size, ...]]
"""`Snapshot.sizes`."""


def heads_of(prefix: Prefix, company: Company, remembered: Remembered) -> Iterator[Head]:
    """Yield what is reported of the blocks that the versions of a resource begin with."""
    for version in (prefix.version, *prefix.earlier):
        if version is None:
            continue
        for size in sizes_of(version, company, remembered):
            if size[2]:
                yield _head(prefix, version, size)


def sizes_of(version: Version, company: Company, remembered: Remembered) -> tuple[Size, ...]:
    """Return the different sizes that pods report of a version, or have reported."""
    return tuple(sorted({*company.sizes.get(version.id, ()), *remembered.get(version.id, ())}))


class Sizes:
    """The room of all versions of some resources, as long as nobody tells of another size.

    What is not pinned takes none.
    """

    def __init__(
        self,
        companies: Mapping[str, Company],
        families: Families,
        remembered: Remembered | None = None,
    ) -> None:
        self._companies = dict(companies)
        self._families = families
        self._remembered = dict(remembered or {})
        self._sized = _sized(companies)
        self._told: dict[str, frozenset[Size]] = {}
        self._by_report: dict[tuple[str, Size], Footprint] = {}
        self._elsewhere: dict[tuple[str, int], Footprint] = {}
        self._least: dict[tuple[str, frozenset[int]], int] = {}

    def hold(
        self, companies: Mapping[str, Company], families: Families, remembered: Remembered
    ) -> bool:
        """Whether these are the sizes still."""
        return (
            families is self._families
            and remembered == self._remembered
            and _sized(companies) == self._sized
        )

    def declared(self, prefix: Prefix, station: Station) -> Footprint:
        """Return the room of the declared version on a pod."""
        return NOTHING if prefix.version is None else self.of(prefix, prefix.version, station)

    def of(self, prefix: Prefix, version: Version, station: Station) -> Footprint:
        """Return the room of a version on a pod."""
        each = station.candidate
        if each.engine is None or prefix.pinning is Pinning.NONE:
            return NOTHING
        state = each.reported.get(version.id)
        size = size_of(state, each.engine) if state is not None else None
        if size is not None:
            return self._reported(prefix, version, size)
        return self._unreported(prefix, version, each.engine.block_size)

    def least(self, prefix: Prefix, block_sizes: frozenset[int]) -> int:
        """Return how much room the declared version takes at least on pods of these block sizes.

        That is what it shares with nobody.
        """
        version = prefix.version
        if version is None or prefix.pinning is Pinning.NONE:
            return 0
        key = (version.id, block_sizes)
        found = self._least.get(key)
        if found is None:
            footprints = [
                *(self._reported(prefix, version, size) for size in self._sizes(prefix, version)),
                *(self._unreported(prefix, version, block_size) for block_size in block_sizes),
            ]
            found = self._least[key] = min((each.own for each in footprints), default=0)
        return found

    def measured(self, prefix: Prefix, version: Version) -> frozenset[int]:
        """Return the block sizes of the engines that have told how large the version is."""
        return frozenset(size[0] for size in self._sizes(prefix, version))

    def _sizes(self, prefix: Prefix, version: Version) -> frozenset[Size]:
        found = self._told.get(version.id)
        if found is None:
            company = self._companies.get(prefix.namespace)
            present = company.sizes.get(version.id, ()) if company is not None else ()
            found = frozenset((*present, *self._remembered.get(version.id, ())))
            self._told[version.id] = found
        return found

    def _reported(self, prefix: Prefix, version: Version, size: Size) -> Footprint:
        key = (version.id, size)
        found = self._by_report.get(key)
        if found is None:
            found = self._families.footprint(_head(prefix, version, size))
            self._by_report[key] = found
        return found

    def _unreported(self, prefix: Prefix, version: Version, block_size: int) -> Footprint:
        """Return the room by the reports of other pods, the largest of several, or by estimate."""
        key = (version.id, block_size)
        found = self._elsewhere.get(key)
        if found is None:
            found = self._elsewhere[key] = self._read(prefix, version, block_size)
        return found

    def _read(self, prefix: Prefix, version: Version, block_size: int) -> Footprint:
        if block_size <= 0:
            return NOTHING
        told = self._sizes(prefix, version)
        if same := [size for size in told if size[0] == block_size]:
            return self._reported(prefix, version, max(same))
        tokens = max((size[1] for size in told), default=version.estimated_tokens)
        blocks = -(-tokens // block_size)
        return Footprint(blocks, blocks)


def _sized(companies: Mapping[str, Company]) -> Mapping[str, tuple[Company, int]]:
    """Return what changes when pods report other sizes."""
    return {namespace: (each, each.sized) for namespace, each in companies.items()}


def _head(prefix: Prefix, version: Version, size: Size) -> Head:
    block_size, tokens, heads = size
    scope = f"{prefix.namespace}\n{version.model}\n{version.salt_digest}"
    return Head(scope, block_size, tokens // block_size, heads)
