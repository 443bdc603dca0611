"""A small model of vLLM's block pool, and pins of what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptprefix_vllm.pins import PinTable

SIZE = 32


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: bytes | None = None


class FakePool:
    """Caches blocks by hash, counts references, and refuses to free what nobody holds."""

    def __init__(self, blocks: int = 100) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [FakeBlock(number) for number in range(blocks)]
        self.freed: list[int] = []

    def compute(self, names: Iterable[str]) -> tuple[bytes, ...]:
        """Caches a chain of blocks and returns its hashes; what is cached stays where it is."""
        hashes, chain = [], ""
        for name in names:
            chain += name
            digest = chain.encode()
            if self.get_cached_block(digest, [0]) is None:
                self._free_block(hashes).block_hash = digest + b"|0"
            hashes.append(digest)
        return tuple(hashes)

    def _free_block(self, chain: Sequence[bytes]) -> FakeBlock:
        """An empty block, else one that nobody holds and that is not part of ``chain``."""
        kept = {digest + b"|0" for digest in chain}
        free = [b for b in self.blocks[1:] if not b.ref_cnt and b.block_hash not in kept]
        return min(free, key=lambda block: block.block_hash is not None)

    def evict(self) -> None:
        """Other traffic takes every block that nobody holds."""
        for block in self.blocks:
            if not block.ref_cnt:
                block.block_hash = None

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[FakeBlock]) -> None:
        for block in ordered_blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self.freed.append(block.block_id)

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> list[FakeBlock] | None:
        assert groups == [0]
        wanted = block_hash + b"|0"
        found = [block for block in self.blocks if block.block_hash == wanted]
        return found[:1] or None

    def get_num_free_blocks(self) -> int:
        return sum(1 for block in self.blocks[1:] if not block.ref_cnt)

    def evict_blocks(self, block_ids: set[int]) -> None:
        for number in block_ids:
            self.blocks[number].block_hash = None


def hold(table: PinTable, name: str, hashes: Sequence[bytes], **change: float) -> None:
    values = {"lease": 60.0, "priority": 0.0, "now": 0.0, **change}
    table.pin(
        name,
        hashes,
        lease=values["lease"],
        priority=int(values["priority"]),
        now=values["now"],
    )
