"""Blocks of several groups, and block pools of older releases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.pins import PinTable

SIZE = 4


def block(number: int) -> Any:
    return SimpleNamespace(
        block_id=number, ref_cnt=0, is_null=number == 0, block_hash=bytes([number])
    )


class Pool:
    """Of a release before 0.12: touches a list of blocks for each group, evicts one by one.

    Block n of group g is cached under n's hash and has the number 10 * g + n.
    """

    num_gpu_blocks = 31

    def __init__(self) -> None:
        self.blocks = [block(number) for number in range(31)]

    def touch(self, blocks: tuple[list[Any], ...]) -> None:
        for group in blocks:
            for each in group:
                each.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for each in ordered_blocks:
            each.ref_cnt -= 1

    def get_num_free_blocks(self) -> int:
        return sum(not each.ref_cnt for each in self.blocks[1:])

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> Any:
        (group,) = kv_cache_group_ids
        found = self.blocks[10 * group + block_hash[0]]
        return [found] if found.block_hash else None

    def _maybe_evict_cached_block(self, each: Any) -> None:
        each.block_hash = None


class Coordinator:
    """Full attention and a window of two blocks."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def find_longest_cache_hit(
        self, block_hashes: list[bytes], max_cache_hit_length: int
    ) -> tuple[Any, int]:
        count = min(len(block_hashes), max_cache_hit_length // SIZE)
        full = [self.pool.blocks[digest[0]] for digest in block_hashes[:count]]
        window = [self.pool.blocks[10 + digest[0]] for digest in block_hashes[:count]]
        window[: count - 2] = [self.pool.blocks[0]] * (count - 2)
        needed = [each for each in (*full, *window) if not each.is_null]
        if not all(each.block_hash for each in needed):
            return ([], []), 0
        return (full, window), count * SIZE


def test_a_pin_holds_what_each_group_keeps() -> None:
    pool = Pool()
    cache = PrefixCache(pool, SIZE, groups=2, coordinator=Coordinator(pool))
    table = PinTable(cache, SIZE, budget_blocks=10)
    hashes = [bytes([number]) for number in range(1, 6)]
    pin = table.pin("p", hashes, lease=9, priority=0, now=0)
    held = [each.block_id for each in pool.blocks if each.ref_cnt]
    assert held == [1, 2, 3, 4, 5, 14, 15]
    assert (table.blocks_pinned, cache.blocks_free, cache.blocks_total) == (7, 23, 30)
    assert table.pinned_tokens(pin) == table.resident_tokens(pin) == 5 * SIZE
    pool.blocks[14].block_hash = None
    assert table.pinned_tokens(pin) == table.resident_tokens(pin) == 0
    table.evict("p", now=1)
    assert [each.block_id for each in pool.blocks[1:20] if not each.block_hash] == [
        *range(1, 6),
        *range(11, 16),
    ]
    assert cache.blocks_free == 30
