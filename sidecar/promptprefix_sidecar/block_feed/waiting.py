"""Blocks without a name: those whose parent isn't known yet, and those that never have one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promptprefix.tokens import TOKEN_BYTES
from promptprefix_sidecar.kv_events.events import BlockHash, Stored

MAX_WAITING = 8_192
MAX_NAMELESS = 32_768

_Place = tuple[int, BlockHash]


class Nameless:
    """At most `MAX_NAMELESS` blocks by group and hash; the oldest are forgotten.

    What comes behind one of them is another one; behind a forgotten one it waits.
    """

    def __init__(self) -> None:
        self._blocks: dict[_Place, None] = {}

    def clear(self) -> None:
        """Forget them all."""
        self._blocks.clear()

    def add(self, group: int, hashes: Iterable[BlockHash]) -> None:
        """Take note of some."""
        self._blocks.update(dict.fromkeys((group, block_hash) for block_hash in hashes))
        while len(self._blocks) > MAX_NAMELESS:
            del self._blocks[next(iter(self._blocks))]

    def has(self, group: int, block_hash: BlockHash) -> bool:
        """Whether a block is one of them."""
        return (group, block_hash) in self._blocks

    def drop(self, group: int, block_hash: BlockHash) -> None:
        """Forget a block, if it is one of them."""
        self._blocks.pop((group, block_hash), None)


class Waiting:
    """At most `MAX_WAITING` blocks by group and hash; the oldest are given up."""

    def __init__(self) -> None:
        self._blocks: dict[_Place, Stored] = {}
        self._children: dict[_Place, set[BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        """Forget them all."""
        self._blocks.clear()
        self._children.clear()

    def add(self, event: Stored) -> None:
        """Let the blocks of an event wait, each for the one before it."""
        parent, size = event.parent, event.block_size * TOKEN_BYTES
        if parent is None:
            return
        for place, block_hash in enumerate(event.hashes):
            self.drop(event.group, block_hash)
            tokens = event.tokens[place * size : (place + 1) * size]
            one = replace(event, hashes=(block_hash,), parent=parent, tokens=tokens)
            self._blocks[event.group, block_hash] = one
            self._children.setdefault((event.group, parent), set()).add(block_hash)
            parent = block_hash
        while len(self._blocks) > MAX_WAITING:
            self.drop(*next(iter(self._blocks)))

    def take(self, group: int, parent: BlockHash) -> list[Stored]:
        """Return the blocks that waited for this one; they wait no longer."""
        if not self._children:
            return []
        hashes = self._children.pop((group, parent), ())
        return [self._blocks.pop((group, block_hash)) for block_hash in hashes]

    def drop(self, group: int, block_hash: BlockHash) -> None:
        """Give up a block, if it waits."""
        block = self._blocks.pop((group, block_hash), None)
        if block is None or block.parent is None:
            return
        siblings = self._children[group, block.parent]
        siblings.discard(block_hash)
        if not siblings:
            del self._children[group, block.parent]
