"""How many leading blocks of each watched head an engine has cached, by its events.

Only blocks whose tokens continue a watched head are kept, at most one for each place in a head and
KV group, so memory is bounded by the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from promptprefix.tokens import TOKEN_BYTES
from promptprefix_sidecar.kv_events.events import (
    GPU,
    BlockHash,
    Cleared,
    Event,
    Removed,
    Stored,
)

MAX_GROUPS = 16
"""KV groups of a model that are told apart; blocks of others are passed over."""

WHOLE_PREFIX = frozenset({"", "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of attention whose groups keep every block of a prefix. The others keep a part of it."""


class Standing(StrEnum):
    """What the events prove about a whole head.

    LOST: a block is gone, and surely so as engines give up a prefix from its end: what is computed
    anew had no older copy. DOUBTFUL: a block went that may have had another copy. UNKNOWN: events
    were missed, or the blocks were stored before the head was watched.
    """

    UNKNOWN = "unknown"
    RESIDENT = "resident"
    DOUBTFUL = "doubtful"
    LOST = "lost"


@dataclass(frozen=True)
class HeadKey:
    """A head's identity in the engine's cache: its tokens and what is mixed into their hashes."""

    digest: str
    lora: str = ""
    salt: str = field(default="", repr=False)


@dataclass(frozen=True)
class Residency:
    """Leading tokens that are proved cached: ``tokens`` on the GPU, ``copied`` outside it."""

    standing: Standing = Standing.UNKNOWN
    tokens: int = 0
    copied: int = 0


@dataclass(eq=False, slots=True)
class _Block:
    """One block's place in heads. ``several``: there may be more than one copy on the GPU."""

    group: int
    hash: BlockHash
    start: int
    end: int
    heads: set[_Head]
    resident: bool = False
    several: bool = False
    copies: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Head:
    """``places`` maps group and first token to the block there.

    ``reported``: its blocks may be told of by a request that found them, which says nothing of how
    many copies there are. ``standing`` is ahead of ``residency`` by the events of the batch that is
    being taken over, but for what was stored: that waits while it is among the grown.
    """

    key: HeadKey
    tokens: bytes
    reported: bool = False
    places: dict[int, dict[int, _Block]] = field(default_factory=dict)
    residency: Residency = Residency()
    standing: Standing = Standing.UNKNOWN


class Index:
    """Fed with the events of one engine, in order."""

    def __init__(self) -> None:
        self._heads: dict[HeadKey, _Head] = {}
        self._blocks: dict[tuple[int, BlockHash], _Block] = {}
        self._touched: set[_Head] = set()
        self._grown: set[_Head] = set()
        self._changed: set[HeadKey] = set()

    @property
    def blocks(self) -> int:
        """Number of blocks that are kept."""
        return len(self._blocks)

    def residency(self, key: HeadKey) -> Residency:
        """Return what is known of a head."""
        head = self._heads.get(key)
        return Residency() if head is None else head.residency

    def watch(self, heads: Mapping[HeadKey, bytes]) -> None:
        """Watch these heads (with their `token_bytes`) and no others."""
        for key in [key for key in self._heads if key not in heads]:
            self._unwatch(key)
        for key, tokens in heads.items():
            if key not in self._heads:
                self._begin(key, tokens)
        self._settle()

    def expect_report(self, keys: Iterable[HeadKey]) -> None:
        """Take note of the heads whose blocks may be told of by a request that found them."""
        reported = frozenset(keys)
        for key, head in self._heads.items():
            head.reported = key in reported

    def reported(self, event: Stored) -> bool:
        """Whether an event may be of a request that found the blocks: it begins with the first."""
        first = event.tokens[: event.block_size * TOKEN_BYTES]
        return event.parent is None and any(
            head.reported and head.tokens.startswith(first)
            for head in self._scope(event.lora or "", event.salt or "")
        )

    def apply(self, events: Iterable[Event]) -> None:
        """Take over what happened. Each head is looked through once, not once for every event."""
        for event in events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)
                case Cleared():
                    self._clear()
        self._settle()

    def forget(self) -> None:
        """Know nothing any more: events were missed, or the engine is another one."""
        self._blocks.clear()
        self._touched.clear()
        self._grown.clear()
        for head in self._heads.values():
            head.places.clear()
            self._note(head, Residency())

    def take_changed(self) -> Mapping[HeadKey, Residency]:
        """Return the heads whose residency changed since the last call, as they are now."""
        changed, self._changed = self._changed, set()
        return {key: self.residency(key) for key in changed if key in self._heads}

    def _begin(self, key: HeadKey, tokens: bytes) -> None:
        head = _Head(key, tokens)
        for other in self._scope(key.lora, key.salt):
            common = _common(tokens, other.tokens) if other.places else 0
            for block in self._all_places(other) if common else ():
                if block.end <= common:
                    self._put(head, block)
        self._heads[key] = head
        self._grow({head})

    def _unwatch(self, key: HeadKey) -> None:
        head = self._heads.pop(key)
        self._touched.discard(head)
        self._grown.discard(head)
        self._changed.discard(key)
        for block in self._all_places(head):
            self._leave(head, block)

    def _scope(self, lora: str, salt: str) -> list[_Head]:
        return [head for key, head in self._heads.items() if key.lora == lora and key.salt == salt]

    @staticmethod
    def _all_places(head: _Head) -> list[_Block]:
        return [block for places in head.places.values() for block in places.values()]

    def _grow(self, heads: set[_Head]) -> None:
        self._grown |= heads
        self._touched |= heads

    def _store(self, event: Stored) -> None:
        if event.medium != GPU:
            self._copy(event)
            return
        if event.kind not in WHOLE_PREFIX or event.group >= MAX_GROUPS or event.salt is None:
            return
        if event.lora is None:
            return
        size = event.block_size * TOKEN_BYTES
        if not size or len(event.tokens) != size * len(event.hashes):
            return
        start, candidates = self._origin(event, event.lora, event.salt)
        for place, block_hash in enumerate(event.hashes):
            end = start + event.block_size
            part = event.tokens[place * size : (place + 1) * size]
            candidates = [
                head for head in candidates if head.tokens.startswith(part, start * TOKEN_BYTES)
            ]
            if not candidates:
                return
            self._stored(event.group, block_hash, start, end, candidates)
            start = end

    def _origin(self, event: Stored, lora: str, salt: str) -> tuple[int, list[_Head]]:
        if event.parent is None:
            return 0, self._scope(lora, salt)
        parent = self._blocks.get((event.group, event.parent))
        if parent is None:
            return 0, []
        return parent.end, list(parent.heads)

    def _stored(
        self, group: int, block_hash: BlockHash, start: int, end: int, heads: list[_Head]
    ) -> None:
        block = self._blocks.get((group, block_hash))
        if block is None or (block.start, block.end) != (start, end):
            block = self._placed(group, block_hash, start, end, heads)
            if block is None:
                return
        for head in heads:
            self._put(head, block)
        reported = any(head.reported for head in block.heads)
        block.several = block.resident or reported
        block.resident = True
        self._grow(block.heads)

    def _placed(
        self, group: int, block_hash: BlockHash, start: int, end: int, heads: list[_Head]
    ) -> _Block | None:
        """Return a new block, or None where a longer one has its place.

        A shorter one is a part of a block that was told of before the block was full.
        """
        for head in heads:
            there = head.places.get(group, {}).get(start)
            if there is not None and there.end > end:
                return None
        twin = self._blocks.get((group, block_hash))
        if twin is not None:
            for head in list(twin.heads):
                self._take_out(head, twin)
        block = _Block(group, block_hash, start, end, set())
        self._blocks[group, block_hash] = block
        return block

    def _put(self, head: _Head, block: _Block) -> None:
        """Give a block its place in a head. The newest hash of a place is the one in use."""
        places = head.places.setdefault(block.group, {})
        there = places.get(block.start)
        if there is block:
            return
        if there is not None:
            self._leave(head, there)
        places[block.start] = block
        block.heads.add(head)

    def _take_out(self, head: _Head, block: _Block) -> None:
        if head in self._grown:
            self._look_through(head)
        del head.places[block.group][block.start]
        self._touched.add(head)
        self._leave(head, block)

    def _leave(self, head: _Head, block: _Block) -> None:
        block.heads.discard(head)
        if not block.heads:
            self._blocks.pop((block.group, block.hash), None)

    def _copy(self, event: Stored) -> None:
        """A copy outside the GPU is known by its hash: offload tiers don't always say tokens."""
        for block in self._known(event.group, event.hashes):
            block.copies.add(event.medium)
            self._touched |= block.heads

    def _remove(self, event: Removed) -> None:
        for block in self._known(event.group, event.hashes):
            if event.medium == GPU:
                self._gone(block)
            else:
                block.copies.discard(event.medium)
            self._touched |= block.heads

    def _gone(self, block: _Block) -> None:
        for head in block.heads & self._grown:
            self._look_through(head)
        block.resident = False
        proved = (
            (Standing.RESIDENT, Standing.DOUBTFUL) if not block.several else (Standing.RESIDENT,)
        )
        left = Standing.DOUBTFUL if block.several else Standing.LOST
        for head in block.heads:
            if head.standing in proved:
                head.standing = left

    def _known(self, group: int, hashes: Iterable[BlockHash]) -> Iterator[_Block]:
        for block_hash in hashes:
            block = self._blocks.get((group, block_hash))
            if block is not None:
                yield block

    def _clear(self) -> None:
        """Nothing is cached on the GPU; whether copies were kept is not said."""
        for block in self._blocks.values():
            block.resident = block.several = False
            block.copies.clear()
        for head in list(self._grown):
            self._look_through(head)
        for head in self._heads.values():
            self._note(head, Residency(Standing.LOST))
        self._touched.clear()

    def _settle(self) -> None:
        for head in self._touched:
            self._look_through(head)
        self._touched.clear()

    def _look_through(self, head: _Head) -> None:
        self._grown.discard(head)
        self._note(head, _residency(head))

    def _note(self, head: _Head, residency: Residency) -> None:
        head.standing = residency.standing
        if residency != head.residency:
            head.residency = residency
            self._changed.add(head.key)


def _common(one: bytes, other: bytes) -> int:
    """Return how many leading tokens are equal."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    if one[:TOKEN_BYTES] != other[:TOKEN_BYTES]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low * TOKEN_BYTES : middle * TOKEN_BYTES], low * TOKEN_BYTES):
            low = middle
        else:
            high = middle - 1
    return low


def _residency(head: _Head) -> Residency:
    whole = len(head.tokens) // TOKEN_BYTES
    tokens = min((_cached(places, whole) for places in head.places.values()), default=0)
    copied = min((_copied(places, whole) for places in head.places.values()), default=0)
    return Residency(_standing(head, complete=tokens == whole), tokens, copied)


def _cached(places: Mapping[int, _Block], whole: int) -> int:
    return _leading(places, whole, lambda block: block.resident)


def _copied(places: Mapping[int, _Block], whole: int) -> int:
    return _leading(places, whole, lambda block: bool(block.copies))


def _leading(places: Mapping[int, _Block], whole: int, there: Callable[[_Block], bool]) -> int:
    """Return how many leading tokens are there; all, if no further block fits into the head."""
    end, size = 0, 1
    while (block := places.get(end)) is not None and there(block):
        size, end = block.end - block.start, block.end
    return whole if end + size > whole else end


def _standing(head: _Head, *, complete: bool) -> Standing:
    if complete:
        return Standing.RESIDENT
    # A block without a place was replaced by one with another hash: nobody can vouch for it.
    before = head.standing
    if before is Standing.RESIDENT or (before is Standing.LOST and _may_be_whole(head)):
        return Standing.DOUBTFUL
    return before


def _may_be_whole(head: _Head) -> bool:
    """Tell whether each block that went may have another copy and all others are there."""
    whole = len(head.tokens) // TOKEN_BYTES
    return all(
        _leading(places, whole, lambda block: block.resident or block.several) == whole
        for places in head.places.values()
    )
