"""How many blocks prefixes take together: equal beginnings are the same blocks.

`PlacementState.heads` has digests of the first blocks at the rungs of `HEAD_LADDER`. Two prefixes
of the same model and cache salt share as many blocks as the longest rung on which their digests
agree says; what they may share beyond it counts twice, so a sum is never too small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    """The footprints of all heads at one moment.

    Rungs that the same heads have in common are one node, so that a footprint has as many nodes as
    there are different sets of heads that it shares blocks with.
    """

    def __init__(self, heads: Iterable[Head]) -> None:
        self._sharers: Counter[Rung] = Counter()
        self._known: dict[Head, Footprint] = {}
        for head in heads:
            if head.heads:
                self._sharers.update(rung for _, rung in head.rungs)

    def footprint(self, head: Head) -> Footprint:
        """Return the footprint of one of the heads, or of one that shares nothing."""
        if not head.heads:
            return Footprint(head.blocks, head.blocks)
        found = self._known.get(head)
        if found is None:
            found = self._known[head] = self._read(head)
        return found

    def _read(self, head: Head) -> Footprint:
        segments: list[tuple[Node, int]] = []
        begin = covered = sharers = 0
        for count, rung in head.rungs:
            also = self._sharers[rung]
            if also < 2:
                break
            if segments and also == sharers:
                segments.pop()
            else:
                begin = covered
            segments.append(((rung, begin), count - begin))
            covered, sharers = count, also
        return Footprint(head.blocks, head.blocks - covered, tuple(segments))
