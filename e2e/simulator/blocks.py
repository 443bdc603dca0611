"""The block pool: reference counts, cached hashes and the order of eviction, as vLLM keeps them.

Source: ``vllm/v1/core/block_pool.py`` and ``kv_cache_utils.py`` of vLLM 0.32. A block in use is
never in the free queue, so never evicted. Freed blocks that are cached go to the queue's end in
the order given; others go to its front.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from e2e.simulator.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, event_hash


@dataclass(slots=True, eq=False)
class Block:
    """One block. ``block_hash`` is what it is cached under, None if it is not."""

    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: bytes | None = None


@dataclass(frozen=True)
class StoredContext:
    """What an event tells of the request that filled blocks."""

    token_ids: Sequence[int]
    extra_keys: Sequence[tuple[str, ...] | None]
    parent: bytes | None
    lora_id: int | None
    lora_name: str | None


class BlockPool:
    """All blocks of one engine; block 0 stands for nothing and is never given out."""

    def __init__(self, num_gpu_blocks: int, block_size: int, *, events: bool) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.blocks = [Block(number) for number in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self._free: OrderedDict[int, Block] = OrderedDict((b.block_id, b) for b in self.blocks[1:])
        self._cached: dict[bytes, dict[int, Block]] = {}
        self._events: list[Event] | None = [] if events else None

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_usage(self) -> float:
        """Return the share of blocks that something holds."""
        total = self.num_gpu_blocks - 1
        return 1.0 - len(self._free) / total if total else 0.0

    def get_cached_block(
        self, block_hash: bytes, kv_cache_group_ids: list[int]
    ) -> list[Block] | None:
        """Return the block cached under the hash, the oldest of several; the only group is 0."""
        found = self._cached.get(block_hash)
        return [next(iter(found.values()))] * len(kv_cache_group_ids) if found else None

    def get_new_blocks(self, count: int) -> list[Block]:
        """Take blocks from the front of the free queue; what they cached is gone."""
        if count > len(self._free):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        taken = [self._free.popitem(last=False)[1] for _ in range(count)]
        for block in taken:
            self._evict(block)
            block.ref_cnt += 1
        return taken

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null:
                del self._free[block.block_id]
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Give references back; the first block given is evicted first."""
        first: list[Block] = []
        last: list[Block] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and not block.is_null:
                (first if block.block_hash is None else last).append(block)
        for block in reversed(first):
            self._free[block.block_id] = block
            self._free.move_to_end(block.block_id, last=False)
        for block in last:
            self._free[block.block_id] = block

    def cache(
        self, blocks: Sequence[Block], hashes: Sequence[bytes], context: StoredContext
    ) -> None:
        """Cache full blocks under their hashes; equal ones are not merged."""
        for block, digest in zip(blocks, hashes, strict=True):
            block.block_hash = digest
            self._cached.setdefault(digest, {})[block.block_id] = block
        self.tell(hashes, context)

    def tell(self, hashes: Sequence[bytes], context: StoredContext) -> None:
        """Record an event of blocks that are cached now."""
        if self._events is not None and hashes:
            self._events.append(
                BlockStored(
                    block_hashes=[event_hash(digest) for digest in hashes],
                    parent_block_hash=None
                    if context.parent is None
                    else event_hash(context.parent),
                    token_ids=list(context.token_ids),
                    block_size=self.block_size,
                    lora_id=context.lora_id,
                    medium="GPU",
                    lora_name=context.lora_name,
                    extra_keys=list(context.extra_keys),
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            )

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Drop blocks from the cache; those in use stay with their users."""
        for block_id in block_ids:
            self._evict(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; refused while anything holds a block."""
        if len(self._free) != self.num_gpu_blocks - 1:
            return False
        self._cached.clear()
        for block in self.blocks:
            block.block_hash = None
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[Event]:
        """Return what happened since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def _evict(self, block: Block) -> None:
        digest = block.block_hash
        if digest is None:
            return
        block.block_hash = None
        same = self._cached[digest]
        del same[block.block_id]
        if not same:
            del self._cached[digest]
        if self._events is not None:
            self._events.append(
                BlockRemoved(block_hashes=[event_hash(digest)], medium="GPU", group_idx=0)
            )
