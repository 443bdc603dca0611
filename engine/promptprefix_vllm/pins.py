"""The pin table: which prefix blocks are held, for how long, and what they cost.

It reads no clock: ``now`` is a monotonic time in seconds that the caller read.

A pinned block is referenced exactly once in the pool, however many pins share it. So a block whose
reference count is 1 is held by pins alone, and the budget counts unique blocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from promptprefix_vllm.adapters import Adapter
from promptprefix_vllm.cache import Block, PrefixCache
from promptprefix_vllm.commands import CommandError
from promptprefix_vllm.watchlist import Watched, Watchlist

MAX_PINS: Final = 256
MAX_RELEASES: Final = 64

LEASE_EXPIRED: Final = "LeaseExpired"
PRESSURE_VALVE: Final = "PressureValve"
CACHE_RESET: Final = "CacheReset"
UNPINNED: Final = "Unpinned"
EVICTED: Final = "Evicted"
ADAPTER_CHANGED: Final = "AdapterChanged"


@dataclass(frozen=True)
class HeldBlock:
    """A block and the hash it was cached under when it was pinned."""

    block: Block
    cached_as: bytes | None

    @property
    def is_cached(self) -> bool:
        return self.block.block_hash is not None and self.block.block_hash == self.cached_as


@dataclass(frozen=True, kw_only=True)
class Pin(Watched):
    """deadline and last_hit are monotonic seconds. hits: matches whose prefix was cached."""

    held: tuple[HeldBlock, ...]
    deadline: float
    priority: int
    hits: int = 0
    last_hit: float | None = None


@dataclass(frozen=True)
class Release:
    id: str
    reason: str
    blocks: int
    at: float


class PinTable:
    """Holds the pins of one engine.

    Invariants: ``_owners[b]`` is the number of pins that hold block b, ``_hashes[h]`` of those over
    hash h; each such block has exactly one pool reference of ours; unique blocks never exceed the
    budget. An id is pinned or watched, never both. ``dropped_blocks``: how many blocks of a cached
    head vLLM computes anew at every hit, as it does for some ways of speculative decoding.
    """

    def __init__(
        self, cache: PrefixCache, block_size: int, budget_blocks: int, dropped_blocks: int = 0
    ) -> None:
        self.cache = cache
        self.block_size = block_size
        self.budget_blocks = budget_blocks
        self.pin_epoch = 0
        self.watchlist = Watchlist()
        self._dropped_blocks = dropped_blocks
        self._pins: dict[str, Pin] = {}
        self._owners: dict[int, int] = {}
        self._hashes: Counter[bytes] = Counter()
        self._releases: deque[Release] = deque(maxlen=MAX_RELEASES)
        self._next_deadline = float("inf")
        self._unique: tuple[Block, ...] | None = None

    @property
    def pins(self) -> tuple[Pin, ...]:
        return tuple(self._pins.values())

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple(self._releases)

    @property
    def blocks_pinned(self) -> int:
        return len(self._owners)

    def get(self, pin_id: str) -> Pin | None:
        return self._pins.get(pin_id)

    def check_budget(self, pin_id: str, hashes: Sequence[bytes]) -> None:
        """Refuses a pin that could never fit, before its tokens are computed."""
        old = self._pins.get(pin_id)
        if len(self._pins) - (old is not None) >= MAX_PINS:
            raise CommandError("TooManyPins", f"the engine holds {MAX_PINS} pins at most")
        wanted = set(hashes)
        given_up = () if old is None else old.hashes
        less = sum(self._hashes[each] == 1 and each not in wanted for each in given_up)
        self._refuse_over_budget(len(self._hashes) - less + self._not_pinned(wanted))

    def check_room(self, hashes: Sequence[bytes]) -> None:
        """Refuses a warm-up for which pins would have to go: no user asked for it."""
        needed = self._not_pinned(set(hashes))
        room = self.cache.blocks_total - self.blocks_pinned
        # The prompt has a token more than its full blocks.
        if needed + 1 > room:
            raise CommandError(
                "BudgetExceeded", f"{needed + 1} blocks would be computed, pins leave {room}"
            )

    def pin(
        self,
        pin_id: str,
        hashes: Sequence[bytes],
        *,
        lease: float,
        priority: int,
        now: float,
        adapter: Adapter | None = None,
    ) -> Pin:
        """Holds a prefix's cached blocks, all or none; replaces a pin of the same id."""
        self.check_budget(pin_id, hashes)
        held = self._find(hashes)
        old = self._pins.get(pin_id)
        kept = set(self._owners) - self._owned_only_by(old)
        self._refuse_over_budget(len(kept | {item.block.block_id for item in held}))

        self._acquire(held)
        self._hashes.update(hashes)
        if old is not None:
            self._forget_hashes(old)
            self._give_back(old.held)
        before = old or self.watchlist.get(pin_id)
        same = before is not None and before.hashes == tuple(hashes)
        pin = Pin(
            id=pin_id,
            hashes=tuple(hashes),
            adapter=adapter,
            held=held,
            deadline=now + lease,
            priority=priority,
            hits=old.hits if old is not None and same else 0,
            last_hit=old.last_hit if old is not None and same else None,
            matches=before.matches if before is not None and same else 0,
            last_match=before.last_match if before is not None and same else None,
        )
        self._pins[pin_id] = pin
        self.watchlist.discard(pin_id)
        self._note_change()
        return pin

    def renew(self, pin_id: str, *, lease: float, priority: int, now: float) -> Pin:
        pin = self._known(pin_id)
        renewed = replace(pin, deadline=now + lease, priority=priority)
        self._pins[pin_id] = renewed
        self._note_deadlines()
        return renewed

    def unpin(self, pin_id: str, *, now: float) -> Pin:
        pin = self._known(pin_id)
        self._release(pin, UNPINNED, now)
        return pin

    def evict(self, pin_id: str, *, now: float) -> Watched:
        """Gives up what is pinned or watched, and drops its blocks that no other pin holds."""
        pin = self._pins.get(pin_id)
        if pin is not None:
            self._release(pin, EVICTED, now, drop=True)
            return pin
        entry = self.watchlist.get(pin_id)
        if entry is None:
            raise CommandError("UnknownPin", "the engine holds and watches no prefix of this id")
        self._drop(entry.hashes)
        return entry

    def release_outdated(self, adapter: Adapter, now: float) -> tuple[Pin, ...]:
        """Gives up and drops what was computed with another adapter of this one's name."""
        pins = tuple(pin for pin in self._pins.values() if _outdated(pin, adapter))
        for pin in pins:
            self._release(pin, ADAPTER_CHANGED, now, drop=True)
        for entry in self.watchlist.entries:
            if _outdated(entry, adapter):
                self._drop(entry.hashes)
        return pins

    def drop_computed(self, hashes: Sequence[bytes], now: float) -> None:
        """Drops the blocks of a request whose adapter was replaced while it ran.

        A pin that shares some can't be told from one over its blocks, so it goes as well.
        """
        wanted = set(hashes)
        for pin in tuple(self._pins.values()):
            if not wanted.isdisjoint(pin.hashes):
                self._release(pin, ADAPTER_CHANGED, now, drop=True)
        self._drop(hashes)

    def release_expired(self, now: float) -> tuple[Pin, ...]:
        """Cheap while no lease has run out: it is asked before every scheduling step."""
        if now < self._next_deadline:
            return ()
        expired = tuple(pin for pin in self._pins.values() if pin.deadline <= now)
        for pin in expired:
            self._release(pin, LEASE_EXPIRED, now)
        return expired

    def release_lowest(self, now: float) -> Pin | None:
        """Gives up the least important pin: lowest priority, then longest without a hit."""
        if not self._pins:
            return None
        lowest = min(
            self._pins.values(),
            key=lambda pin: (pin.priority, pin.last_hit if pin.last_hit is not None else -1.0),
        )
        self._release(lowest, PRESSURE_VALVE, now)
        return lowest

    def release_all(self, now: float) -> int:
        """Before a cache reset, which fails while a block is held. Starts a new pin epoch."""
        count = len(self._pins)
        for pin in tuple(self._pins.values()):
            self._release(pin, CACHE_RESET, now)
        self.pin_epoch += 1
        return count

    def record_request(self, hashes: Sequence[bytes], cached_tokens: int, now: float) -> None:
        """Counts a request of a user: a match of what it begins with, a hit if that was cached."""
        cached_blocks = cached_tokens // self.block_size + self._dropped_blocks
        for pin in tuple(self._pins.values()):
            if not pin.begins(hashes):
                continue
            hit = len(pin.hashes) <= cached_blocks
            self._pins[pin.id] = replace(
                pin,
                matches=pin.matches + 1,
                last_match=now,
                hits=pin.hits + hit,
                last_hit=now if hit else pin.last_hit,
            )
        self.watchlist.record(hashes, now)

    def pin_only_blocks(self) -> int:
        """Blocks that nobody but pins holds: they are not load."""
        if self._unique is None:
            blocks = {item.block.block_id: item.block for pin in self.pins for item in pin.held}
            self._unique = tuple(blocks.values())
        return sum(1 for block in self._unique if block.ref_cnt == 1)

    def resident_tokens(self, entry: Watched) -> int:
        """The head of the prefix that a request would find cached now."""
        return self.block_size * self.cache.hit(entry.hashes)[1]

    def pinned_tokens(self, pin: Pin) -> int:
        """The head that is held and still cached: short if another party evicted our blocks.

        Where blocks and hashes are not one to one, all of it or none.
        """
        cached = _leading(item.is_cached for item in pin.held)
        if len(pin.held) != len(pin.hashes):
            cached = len(pin.hashes) if cached == len(pin.held) else 0
        return self.block_size * cached

    def _known(self, pin_id: str) -> Pin:
        pin = self._pins.get(pin_id)
        if pin is None:
            raise CommandError("UnknownPin", "the engine holds no pin of this id")
        return pin

    def _refuse_over_budget(self, blocks: int) -> None:
        if blocks > self.budget_blocks:
            raise CommandError(
                "BudgetExceeded",
                f"{blocks} blocks would be pinned, the budget is {self.budget_blocks} "
                f"and {self.blocks_pinned} are pinned now",
            )

    def _find(self, hashes: Sequence[bytes]) -> tuple[HeldBlock, ...]:
        blocks, covered = self.cache.hit(hashes)
        if covered < len(hashes):
            raise CommandError("NotResident", f"{covered} of {len(hashes)} blocks are cached")
        return tuple(HeldBlock(block, block.block_hash) for block in blocks)

    def _owned_only_by(self, pin: Pin | None) -> set[int]:
        if pin is None:
            return set()
        ids = {item.block.block_id for item in pin.held}
        return {block_id for block_id in ids if self._owners[block_id] == 1}

    def _acquire(self, held: Sequence[HeldBlock]) -> None:
        self.cache.hold([item.block for item in held if item.block.block_id not in self._owners])
        for item in held:
            self._owners[item.block.block_id] = self._owners.get(item.block.block_id, 0) + 1

    def _give_back(self, held: Sequence[HeldBlock], *, drop: Sequence[bytes] = ()) -> None:
        freed: list[Block] = []
        for item in held:
            block_id = item.block.block_id
            self._owners[block_id] -= 1
            if not self._owners[block_id]:
                del self._owners[block_id]
                freed.append(item.block)
        # Dropped before they are freed, so that the pool reuses these empty blocks first.
        self._drop(drop)
        # The tail of a prefix is worth least, so it goes first.
        self.cache.give_back(reversed(freed))

    def _drop(self, hashes: Sequence[bytes]) -> None:
        """Of what no pin holds."""
        self.cache.drop(hashes, kept=self._owners)

    def _release(self, pin: Pin, reason: str, now: float, *, drop: bool = False) -> None:
        del self._pins[pin.id]
        self._forget_hashes(pin)
        self._give_back(pin.held, drop=pin.hashes if drop else ())
        self._releases.append(Release(pin.id, reason, len(pin.held), now))
        self.watchlist.add(pin)
        self._note_change()

    def _not_pinned(self, hashes: Collection[bytes]) -> int:
        return sum(each not in self._hashes for each in hashes)

    def _forget_hashes(self, pin: Pin) -> None:
        for each in pin.hashes:
            self._hashes[each] -= 1
            if not self._hashes[each]:
                del self._hashes[each]

    def _note_change(self) -> None:
        self._unique = None
        self._note_deadlines()

    def _note_deadlines(self) -> None:
        deadlines = (pin.deadline for pin in self._pins.values())
        self._next_deadline = min(deadlines, default=float("inf"))


def _outdated(entry: Watched, adapter: Adapter) -> bool:
    return (
        entry.adapter is not None
        and entry.adapter.name == adapter.name
        and entry.adapter != adapter
    )


def _leading(flags: Iterable[bool]) -> int:
    count = 0
    for flag in flags:
        if not flag:
            break
        count += 1
    return count
