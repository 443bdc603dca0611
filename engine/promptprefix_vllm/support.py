"""Feature detection: vLLM's scheduler interface is not public, so nothing is taken for granted."""

from __future__ import annotations

import inspect
from typing import Any, Final

_OVERRIDDEN: Final = (
    "_free_request",
    "add_request",
    "finish_requests",
    "get_kv_cache_usage",
    "get_num_unfinished_requests",
    "make_stats",
    "reset_prefix_cache",
    "schedule",
)
_POOL: Final = (
    "touch",
    "free_blocks",
    "evict_blocks",
    "get_cached_block",
    "get_num_free_blocks",
    "num_gpu_blocks",
)
_REQUEST: Final = ("block_hashes", "num_preemptions", "prompt_token_ids", "status")


def missing_hooks(scheduler_class: Any) -> str:
    """What this vLLM's scheduler lacks to be extended at all; empty if nothing."""
    missing = [name for name in _OVERRIDDEN if not callable(getattr(scheduler_class, name, None))]
    return f"the scheduler has no {', '.join(missing)}" if missing else ""


def missing_fields(request: Any) -> str:
    """What this vLLM's requests lack to be pinned; empty if nothing. Only an instance tells."""
    missing = [name for name in _REQUEST if not hasattr(request, name)]
    return f"requests have no {', '.join(missing)}" if missing else ""


def unsupported(scheduler: Any) -> str:
    """Why pins cannot work on this engine, as a sentence; empty if they can."""
    manager = getattr(scheduler, "kv_cache_manager", None)
    pool: Any = getattr(manager, "block_pool", None)
    missing = [name for name in _POOL if not hasattr(pool, name)]
    if missing:
        return f"the block pool has no {', '.join(missing)}"
    if "kv_cache_group_ids" not in inspect.signature(pool.get_cached_block).parameters:
        return "the block pool finds blocks without kv_cache_group_ids"
    if not _touches_single_blocks(pool):
        return "the block pool touches lists of blocks, not single ones"
    if not getattr(manager, "enable_caching", False):
        return "prefix caching is off"
    if not callable(getattr(manager, "allocate_slots", None)):
        return "the KV cache manager has no allocate_slots"
    return _unsupported_parallelism(scheduler) or _unsupported_cache(scheduler)


def _touches_single_blocks(pool: Any) -> bool:
    """Releases differ in what they touch, and only the annotation tells before it is tried."""
    parameters = inspect.signature(pool.touch).parameters.values()
    return not any("tuple[" in str(each.annotation) for each in parameters)


def _unsupported_parallelism(scheduler: Any) -> str:
    parallel = getattr(scheduler, "parallel_config", None)
    if getattr(parallel, "data_parallel_size", 1) > 1:
        # A command reaches the scheduler of one rank only, and the caller cannot choose which.
        return "data parallel size is above 1"
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        return "context parallelism is not verified"
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return "context parallelism is not verified"
    return ""


def _unsupported_cache(scheduler: Any) -> str:
    config = getattr(scheduler, "kv_cache_config", None)
    groups: Any = getattr(config, "kv_cache_groups", ())
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups, only one is verified"
    spec = groups[0].kv_cache_spec
    names = {base.__name__ for base in type(spec).__mro__}
    if "FullAttentionSpec" not in names:
        return f"KV cache groups of {type(spec).__name__} are not verified"
    if getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None):
        return "sliding window and chunked attention are not verified"
    block_size = getattr(scheduler, "block_size", None)
    if not block_size or getattr(scheduler, "hash_block_size", block_size) != block_size:
        return "blocks and block hashes have different sizes"
    return ""
