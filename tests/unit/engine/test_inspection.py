"""Reports of many and long pins: right in the end, and cheap each time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.desk import PinDesk
from promptprefix_vllm.inspection import MAX_BLOCKS, Found, Inspector
from promptprefix_vllm.pins import MAX_PINS, PinTable
from promptprefix_vllm.watchlist import MAX_WATCHED

BLOCK = 16
LONG = 187


class CountedBlock:
    """Counts looks at what it caches, for all blocks of the pool."""

    is_null = False

    def __init__(self, number: int, pool: CountingPool) -> None:
        self.block_id = number
        self.ref_cnt = 0
        self.cached_as: bytes | None = None
        self._pool = pool

    @property
    def block_hash(self) -> bytes | None:
        self._pool.looks += 1
        return self.cached_as


class CountingPool:
    """Every chain of hashes is cached, until a block is stripped."""

    def __init__(self) -> None:
        self.looks = 0
        self.num_gpu_blocks = 1
        self.by_hash: dict[bytes, CountedBlock] = {}

    def cache(self, name: int, count: int) -> list[bytes]:
        hashes = [f"{name}/{place}".encode() for place in range(count)]
        for digest in hashes:
            block = CountedBlock(self.num_gpu_blocks, self)
            block.cached_as = digest
            self.by_hash[digest] = block
            self.num_gpu_blocks += 1
        return hashes

    def strip(self, digest: bytes) -> None:
        self.by_hash.pop(digest).cached_as = None

    def touch(self, blocks: Sequence[CountedBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Sequence[CountedBlock]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1

    def get_num_free_blocks(self) -> int:
        return 0

    def get_cached_block(
        self, block_hash: bytes, kv_cache_group_ids: list[int]
    ) -> list[CountedBlock] | None:
        self.looks += 1
        block = self.by_hash.get(block_hash)
        return None if block is None else [block]


def test_a_report_of_many_pins_looks_at_few_blocks_and_at_all_in_turn() -> None:
    pool = CountingPool()
    table = PinTable(PrefixCache(pool, BLOCK), BLOCK, budget_blocks=10**6)
    prefixes = [pool.cache(number, LONG) for number in range(MAX_WATCHED + MAX_PINS)]
    for number, hashes in enumerate(prefixes):
        table.pin(str(number), hashes, lease=99, priority=0, now=0)
        if number < MAX_WATCHED:
            table.unpin(str(number), now=0)
    desk = PinDesk(table, b"k" * 32, "e")
    stripped = {str(number): place for number, place in ((256, 0), (300, 100), (511, 186))}
    for number, place in stripped.items():
        pool.strip(prefixes[int(number)][place])
    told: set[str] = set()
    for _ in range(MAX_PINS * LONG // MAX_BLOCKS + 2):
        pool.looks = 0
        answer = desk._report(1.0)
        # A look at a pin's last block costs two more; each watched prefix about log2 of its blocks.
        assert pool.looks < 3 * (MAX_BLOCKS + LONG) + 9 * MAX_WATCHED
        assert len(answer["pins"]) == MAX_PINS
        assert {item["resident_tokens"] for item in answer["watched"]} == {LONG * BLOCK}
        short = {
            item["id"]: item for item in answer["pins"] if item["pinned_tokens"] < LONG * BLOCK
        }
        assert told <= short.keys()
        told = set(short)
    assert {name: item["pinned_tokens"] // BLOCK for name, item in short.items()} == stripped
    assert all(item["resident_tokens"] == item["pinned_tokens"] for item in short.values())


def test_what_is_pinned_anew_counts_as_whole_again_and_what_went_is_forgotten() -> None:
    pool = CountingPool()
    table = PinTable(PrefixCache(pool, BLOCK), BLOCK, budget_blocks=100)
    hashes = pool.cache(0, 3)
    table.pin("p", hashes, lease=99, priority=0, now=0)
    inspector = Inspector(table, max_blocks=1)
    pool.strip(hashes[1])
    assert inspector.look() == {"p": Found(BLOCK, BLOCK)}
    pool.cache(0, 3)
    table.pin("p", hashes, lease=99, priority=0, now=1)
    assert inspector.look() == {"p": Found(3 * BLOCK, 3 * BLOCK)}
    table.unpin("p", now=2)
    assert inspector.look() == {}


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_cached_beginning_of_a_head_is_found(count: int, there: int) -> None:
    pool = CountingPool()
    hashes = pool.cache(0, count)
    for digest in hashes[there:]:
        pool.strip(digest)
    cache = PrefixCache(pool, BLOCK)
    assert cache.covered(hashes) == cache.hit(hashes)[1] == min(count, there)
