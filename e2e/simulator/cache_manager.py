"""Which blocks each request holds; what vLLM's ``KVCacheManager`` does for full attention."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.simulator.blocks import Block, BlockPool, StoredContext
from e2e.simulator.sim_request import SimRequest


@dataclass
class CacheStats:
    """Tokens asked for and found; preempted requests don't count again."""

    queries: int = 0
    hits: int = 0


class CacheManager:
    """Finds, allocates, caches and frees. ``block_pool`` is where the pin plugin holds blocks."""

    enable_caching = True
    """The pin plugin asks for it."""

    def __init__(self, pool: BlockPool) -> None:
        self.block_pool = pool
        self.stats = CacheStats()
        self._held: dict[str, list[Block]] = {}
        self._cached_blocks: dict[str, int] = {}

    @property
    def usage(self) -> float:
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: SimRequest) -> list[Block]:
        """Return the cached head; the last token is always computed, for its logits."""
        found: list[Block] = []
        longest = (request.num_tokens - 1) // self.block_pool.block_size
        for digest in request.block_hashes[:longest]:
            blocks = self.block_pool.get_cached_block(digest, [0])
            if blocks is None:
                break
            found.append(blocks[0])
        if request.reports_cached:
            self.block_pool.tell(
                request.block_hashes[: len(found)], self._context(request, 0, len(found))
            )
        return found

    def allocate_slots(
        self,
        request: SimRequest,
        num_new_tokens: int,
        computed: list[Block] | None = None,
        *,
        whole_sequence_must_fit: bool = False,
    ) -> list[Block] | None:
        """Return new blocks for so many tokens behind ``computed``; None if too few are free."""
        pool, size = self.block_pool, self.block_pool.block_size
        hit = computed or []
        held = self._held.get(request.request_id, [])
        start = request.num_computed_tokens + len(hit) * size
        # Blocks of the hit that nobody holds lie in the free queue: taking them costs some.
        idle_hits = sum(1 for block in hit if block.ref_cnt == 0)
        free = pool.get_num_free_blocks() - idle_hits
        if whole_sequence_must_fit:
            whole = -(-request.num_tokens // size) - len(held) - len(hit)
            if whole > free:
                return None
        needed = -(-(start + num_new_tokens) // size) - len(held) - len(hit)
        if needed > free:
            return None
        pool.touch(hit)
        new = pool.get_new_blocks(max(0, needed))
        blocks = [*held, *hit, *new]
        self._held[request.request_id] = blocks
        if hit:
            self._cached_blocks[request.request_id] = len(hit)
        self._cache(request, blocks, min(start + num_new_tokens, request.num_tokens) // size)
        return new

    def free(self, request: SimRequest) -> None:
        """Give all blocks back; the tail of a sequence is evicted first."""
        self._cached_blocks.pop(request.request_id, None)
        self.block_pool.free_blocks(reversed(self._held.pop(request.request_id, [])))

    def record(self, request: SimRequest, hits: int) -> None:
        """Count the lookup of an admitted request."""
        if not request.num_preemptions:
            self.stats.queries += request.num_tokens
            self.stats.hits += hits

    def reset_prefix_cache(self) -> bool:
        return self.block_pool.reset_prefix_cache()

    def _cache(self, request: SimRequest, blocks: list[Block], full: int) -> None:
        cached = self._cached_blocks.get(request.request_id, 0)
        if cached >= full:
            return
        self.block_pool.cache(
            blocks[cached:full],
            request.block_hashes[cached:full],
            self._context(request, cached, full),
        )
        self._cached_blocks[request.request_id] = full

    def _context(self, request: SimRequest, first: int, end: int) -> StoredContext:
        size = self.block_pool.block_size
        lora = request.lora_request
        return StoredContext(
            token_ids=request.all_token_ids[first * size : end * size],
            extra_keys=[request.extra_keys(block) for block in range(first, end)],
            parent=request.block_hashes[first - 1] if first else None,
            lora_id=None if lora is None else lora.lora_int_id,
            lora_name=None if lora is None else lora.lora_name,
        )
