"""How many blocks prefixes take together: equal beginnings are the same blocks.

`PlacementState.heads` has digests of the first blocks at the rungs of `HEAD_LADDER`. Two prefixes
of the same model and cache salt share as many blocks as the longest rung on which their digests
agree says; what they may share beyond it counts twice, so a sum is never too small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from promptprefix.wire import HEAD_LADDER

Rung: TypeAlias = tuple[str, int, int, str]
"""Leading blocks: scope, block size, how many, and their digest."""

Node: TypeAlias = tuple[Rung, int]
"""Blocks that several prefixes have in common: those of a rung, but for so many first ones."""


@dataclass(frozen=True)
class Head:
    """A version's blocks as a pod reports them.

    ``scope`` tells apart what never shares blocks, whatever the digests say: model and cache salt.
    ``heads`` may be empty; then nothing is shared.
    """

    scope: str
    block_size: int
    blocks: int
    heads: tuple[str, ...] = ()

    @property
    def rungs(self) -> Iterable[tuple[int, Rung]]:
        """The leading blocks of which there are digests: how many, and which."""
        for count, digest in zip(HEAD_LADDER, self.heads, strict=False):
            if count > self.blocks:
                return
            yield count, (self.scope, self.block_size, count, digest)


@dataclass(frozen=True)
class Footprint:
    """The blocks of a version: ``own``, and those that others may have too, from the first on."""

    blocks: int
    own: int
    shared: tuple[tuple[Node, int], ...] = ()


NOTHING = Footprint(0, 0)
"""Takes no room."""


class Families:
    """The footprints of the heads of all resources, as they are told.

    Rungs that the same heads have in common are one node, so that a footprint has as many nodes as
    there are different sets of heads that it shares blocks with.
    """

    def __init__(self) -> None:
        self._heads: dict[str, Sequence[Head]] = {}
        self._owners: dict[Rung, list[str]] = {}
        self._moved: set[Rung] = set()

    def tell(self, uid: str, heads: Sequence[Head]) -> None:
        """Take in the heads of a resource in place of those before."""
        before = [rung for head in self._heads.pop(uid, ()) for _, rung in head.rungs]
        after = [rung for head in heads for _, rung in head.rungs]
        if heads:
            self._heads[uid] = heads
        for rung in before:
            owners = self._owners[rung]
            owners.remove(uid)
            if not owners:
                del self._owners[rung]
        for rung in after:
            self._owners.setdefault(rung, []).append(uid)
        if before:
            counted = Counter(after)
            counted.subtract(before)
            self._moved.update(rung for rung, more in counted.items() if more)
        else:
            self._moved.update(after)

    def moved(self) -> set[str]:
        """Return the resources of which some footprint may be another than when this was asked."""
        found = {uid for rung in self._moved for uid in self._owners.get(rung, ())}
        self._moved.clear()
        return found

    def footprint(self, head: Head) -> Footprint:
        """Return the footprint of one of the heads, or of one that shares nothing."""
        segments: list[tuple[Node, int]] = []
        begin = covered = sharers = 0
        for count, rung in head.rungs:
            also = len(self._owners.get(rung, ()))
            if also < 2:
                break
            if segments and also == sharers:
                segments.pop()
            else:
                begin = covered
            segments.append(((rung, begin), count - begin))
            covered, sharers = count, also
        return Footprint(head.blocks, head.blocks - covered, tuple(segments))
