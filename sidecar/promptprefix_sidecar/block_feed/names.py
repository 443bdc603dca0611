"""Which blocks an engine's GPU cache holds, under the names that routers know.

Fed with the events of one engine, in order. At most `MAX_BLOCKS` are remembered, and `MAX_WAITING`
whose parent isn't known. As soon as something may be missing, `BlockNames.complete` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from promptprefix.block_stream import BlockKeys, chain, root_name
from promptprefix.tokens import TOKEN_BYTES
from promptprefix_sidecar.block_feed.waiting import Nameless, Waiting
from promptprefix_sidecar.kv_events.events import (
    GPU,
    BlockHash,
    Cleared,
    Event,
    Removed,
    Stored,
)
from promptprefix_sidecar.kv_events.index import MAX_GROUPS, WHOLE_PREFIX

MAX_BLOCKS = 131_072
MAX_EARLY = 16_384
"""Blocks of events that are kept until there is a key to name them with."""

_LANE_BITS = 16
_LANE = (1 << _LANE_BITS) - 1

Reported = Callable[[Stored], bool]
"""Whether an event may be of a request that found the blocks, which makes no copies."""


@dataclass(eq=False, slots=True)
class _Named:
    """``end`` is its depth in tokens; ``holders`` counts its hashes, in a lane for each group."""

    name: bytes
    end: int
    holders: int = 0


@dataclass(slots=True)
class Changes:
    """What changed since the last look: ``anew``: all is to be told again.

    Else, after everything went if ``cleared``: the depth (in blocks) of each name that came, or its
    negative where it went.
    """

    anew: bool = False
    cleared: bool = False
    depths: dict[bytes, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Tell everything again."""
        self.anew, self.cleared = True, False
        self.depths.clear()


class BlockNames:
    """A block is held if every group of full attention that is known has it.

    Groups of sliding windows keep a part of a prefix only and are passed over, as are blocks
    outside the GPU, and those with more in their hash than tokens, an adapter's name and a salt.
    """

    def __init__(self, reported: Reported = lambda _event: False) -> None:
        self._reported = reported
        self._keys: BlockKeys | None = None
        self._early: list[Event] = []
        self._early_blocks = 0
        self._changes = Changes()
        self._waiting = Waiting()
        self._nameless = Nameless()
        self.passed_over = 0
        self._forget(complete=False)

    def _forget(self, *, complete: bool) -> None:
        self._groups: dict[int, dict[BlockHash, _Named]] = {}
        self._more: dict[tuple[int, BlockHash], int] = {}
        self._names: dict[bytes, _Named] = {}
        self._waiting.clear()
        self._nameless.clear()
        self._early.clear()
        self._early_blocks = 0
        self._blocks = 0
        self.block_size = 0
        self.complete = complete
        self._changes.begin()

    @property
    def blocks(self) -> int:
        """Number of blocks that are remembered."""
        return self._blocks

    @property
    def waiting(self) -> int:
        """Number of blocks whose parent isn't known."""
        return len(self._waiting)

    def keyed(self, keys: BlockKeys) -> None:
        """Name blocks by these keys. With other keys than before nothing is known."""
        if keys == self._keys:
            return
        if self._keys is not None:
            self._forget(complete=False)
        self._keys = keys
        early, self._early, self._early_blocks = self._early, [], 0
        self._changes.begin()
        self.apply(early)

    def begin(self, *, complete: bool) -> None:
        """Forget everything. ``complete``: what comes is all since the engine started."""
        self._forget(complete=complete)

    def apply(self, events: Iterable[Event]) -> None:
        """Take over what happened."""
        if self._keys is None:
            self._keep_early(events)
            return
        for event in events:
            match event:
                case Stored():
                    self._store(self._keys, event)
                case Removed():
                    self._remove(event)
                case Cleared():
                    self._clear()

    def take_changes(self) -> Changes:
        """Return what changed since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def held(self, step: int) -> Iterator[bytes]:
        """Return the names that are held whose depth in blocks is a multiple of ``step``."""
        size = self.block_size * step
        if not size:
            return iter(())
        return (
            each.name
            for each in self._names.values()
            if not each.end % size and self._is_held(each.holders)
        )

    def _keep_early(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Cleared):
                self._forget(complete=True)
                continue
            self._early_blocks += len(event.hashes)
            if self._early_blocks > MAX_EARLY:
                self._forget(complete=False)
            else:
                self._early.append(event)

    def _store(self, keys: BlockKeys, event: Stored) -> None:
        if event.medium != GPU or event.kind not in WHOLE_PREFIX or event.group >= MAX_GROUPS:
            return
        lora, salt = event.lora, event.salt
        if lora is None or salt is None or self._is_nameless(event):
            self._nameless.add(event.group, event.hashes)
            return
        size = event.block_size
        if not size or len(event.tokens) != size * TOKEN_BYTES * len(event.hashes):
            return
        if size != self.block_size and not self._resized(size):
            return
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = {}
            self._changes.begin()  # what other groups have is held no longer
        if event.parent is None:
            self._name(keys, event, root_name(keys, lora, salt), 0)
            return
        parent = group.get(event.parent)
        if parent is None:
            self._waiting.add(event)
            self.complete = False
            return
        self._name(keys, event, parent.name, parent.end)

    def _is_nameless(self, event: Stored) -> bool:
        """Whether blocks that begin no prompt have more in their hashes than tokens."""
        if event.parent is None:
            return False
        return bool(event.salt) or self._nameless.has(event.group, event.parent)

    def _resized(self, size: int) -> bool:
        """Whether blocks are of this size; smaller ones are parts, told of before they are full."""
        if size < self.block_size:
            return False
        complete = self.complete
        self._forget(complete=complete)
        self.block_size = size
        return True

    def _name(self, keys: BlockKeys, event: Stored, parent: bytes, end: int) -> None:
        again = 0 if self._reported(event) else 1
        stack = [(event, parent, end)]
        while stack:
            event, parent, end = stack.pop()
            names = chain(keys, parent, event.tokens, event.block_size)
            for block_hash, name in zip(event.hashes, names, strict=True):
                end += event.block_size
                self._add(event.group, block_hash, name, end, again)
                stack += [
                    (child, name, end) for child in self._waiting.take(event.group, block_hash)
                ]

    def _add(self, group: int, block_hash: BlockHash, name: bytes, end: int, again: int) -> None:
        """Take note of a block; one that is known has ``again`` copies more."""
        blocks = self._groups[group]
        if block_hash in blocks:
            if again:
                key = (group, block_hash)
                self._more[key] = self._more.get(key, 0) + again
            return
        if self._blocks >= MAX_BLOCKS:
            self.passed_over += 1
            self.complete = False
            return
        named = self._names.get(name)
        if named is None:
            named = self._names[name] = _Named(name, end)
        blocks[block_hash] = named
        self._blocks += 1
        before = self._is_held(named.holders)
        named.holders += 1 << (_LANE_BITS * group)
        if not before and self._is_held(named.holders):
            self._note(named, 1)

    def _remove(self, event: Removed) -> None:
        if event.medium != GPU:
            return
        blocks = self._groups.get(event.group, {})
        for block_hash in event.hashes:
            key = (event.group, block_hash)
            named = blocks.get(block_hash)
            if named is None:
                self._waiting.drop(event.group, block_hash)
                self._nameless.drop(event.group, block_hash)
                continue
            more = self._more.pop(key, 0)
            if more:
                if more > 1:
                    self._more[key] = more - 1
                continue
            del blocks[block_hash]
            self._blocks -= 1
            before = self._is_held(named.holders)
            named.holders -= 1 << (_LANE_BITS * event.group)
            if not named.holders:
                del self._names[named.name]
            if before and not self._is_held(named.holders):
                self._note(named, -1)

    def _clear(self) -> None:
        block_size = self.block_size
        anew = self._changes.anew or not self.complete
        self._forget(complete=True)
        self.block_size = block_size
        if not anew:
            self._changes = Changes(cleared=True)

    def _is_held(self, holders: int) -> bool:
        if len(self._groups) == 1:
            return holders > 0
        return all(holders >> (_LANE_BITS * group) & _LANE for group in self._groups)

    def _note(self, named: _Named, sign: int) -> None:
        if not self._changes.anew:
            self._changes.depths[named.name] = sign * (named.end // self.block_size)
