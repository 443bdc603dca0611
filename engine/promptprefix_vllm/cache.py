"""vLLM's prefix cache as the pin table sees it, whatever release and attention it is of."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

# Equal blocks may be computed side by side; far fewer than this many in one engine.
_MAX_DUPLICATES: Final = 1024


class Block(Protocol):
    """One KV block of vLLM; ``block_hash`` is None once it is no longer cached."""

    block_id: int
    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> bytes | None: ...


class BlockPool(Protocol):
    """What is needed of ``vllm.v1.core.block_pool.BlockPool``."""

    num_gpu_blocks: int

    def touch(self, blocks: Any) -> None: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> Any: ...

    def get_num_free_blocks(self) -> int: ...


class Coordinator(Protocol):
    """What is needed of vLLM's coordinator of several KV cache groups."""

    def find_longest_cache_hit(
        self, block_hashes: list[Any], max_cache_hit_length: int
    ) -> tuple[Any, ...]: ...


class PrefixCache:
    """Finds, holds, gives back and drops cached blocks.

    coordinator: finds the hits of models that keep not every block of a head, or keep several
    for each of its hashes; None for plain full attention.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        groups: int = 1,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._groups = tuple([number] for number in range(groups))
        self._coordinator = coordinator
        self._touches_nested = touches_nested(pool)

    @property
    def blocks_total(self) -> int:
        """Without the null block, which nobody can have."""
        return self._pool.num_gpu_blocks - 1

    @property
    def blocks_free(self) -> int:
        return self._pool.get_num_free_blocks()

    def hit(self, hashes: Sequence[bytes]) -> tuple[tuple[Block, ...], int]:
        """The blocks that a later request with this head is given, and how many hashes they cover.

        They are the very blocks of the cache, whoever computed them.
        """
        if self._coordinator is not None:
            limit = len(hashes) * self._block_size
            groups, tokens, *_ = self._coordinator.find_longest_cache_hit(list(hashes), limit)
            held = [block for group in groups for block in group if not block.is_null]
            return tuple(held), tokens // self._block_size
        found: list[Block] = []
        for digest in hashes:
            blocks = self._pool.get_cached_block(digest, [0])
            if not blocks or blocks[0].is_null:
                break
            found.append(blocks[0])
        return tuple(found), len(found)

    def covered(self, hashes: Sequence[bytes]) -> int:
        """How many leading hashes a later request would find, in few looks at a long head.

        A head is given up from its end, so what is there is its beginning.
        """
        if self._coordinator is not None:
            return self.hit(hashes)[1]
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if self._pool.get_cached_block(hashes[middle - 1], [0]):
                low = middle
            else:
                high = middle - 1
        return low

    def has_room(self, tokens: int, hashes: Sequence[bytes], reserve: int) -> bool:
        """Whether so many tokens with this head surely fit now, and leave ``reserve`` blocks."""
        needed = -(-tokens // self._block_size) * len(self._groups) + reserve
        free = self.blocks_free
        # Cached blocks that somebody holds are shared; free ones are taken like any other.
        return needed <= free or needed <= free + sum(
            block.ref_cnt > 0 for block in self.hit(hashes)[0]
        )

    def hold(self, blocks: Sequence[Block]) -> None:
        """Adds one reference to each."""
        self._pool.touch((blocks,) if self._touches_nested else blocks)

    def give_back(self, blocks: Iterable[Block]) -> None:
        """Takes one reference from each; the pool evicts in the order given."""
        self._pool.free_blocks(blocks)

    def drop(self, hashes: Sequence[bytes], kept: Iterable[int]) -> None:
        """Takes every block of these hashes out of the cache, but those of the ids ``kept``.

        Requests that are using one keep it until they end; nobody else finds it.
        """
        kept = frozenset(kept)
        for digest in hashes:
            for group in self._groups:
                for _ in range(_MAX_DUPLICATES):
                    found = self._pool.get_cached_block(digest, group)
                    if not found or found[0].is_null or found[0].block_id in kept:
                        break
                    self._evict(found[0])

    def _evict(self, block: Block) -> None:
        pool: Any = self._pool
        if hasattr(pool, "evict_blocks"):
            pool.evict_blocks({block.block_id})
        else:
            pool._maybe_evict_cached_block(block)


def touches_nested(pool: Any) -> bool:
    """Before 0.12 vLLM touched one list of blocks for each group; only the annotation tells."""
    parameters = inspect.signature(pool.touch).parameters.values()
    return any("tuple[" in str(each.annotation) for each in parameters)
