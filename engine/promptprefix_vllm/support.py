"""Feature detection: vLLM's scheduler interface is not public, so nothing is taken for granted."""

from __future__ import annotations

import inspect
from typing import Any, Final

from promptprefix_vllm.cache import PrefixCache

_OVERRIDDEN: Final = (
    "_free_request",
    "add_request",
    "finish_requests",
    "get_num_unfinished_requests",
    "make_stats",
    "reset_prefix_cache",
    "schedule",
)
_POOL: Final = (
    "touch",
    "free_blocks",
    "get_cached_block",
    "get_num_free_blocks",
    "num_gpu_blocks",
)
# Layers with a window are of these too where vLLM keeps all of their blocks.
_FULL: Final = ("FullAttentionSpec", "MLAAttentionSpec")
_WINDOW: Final = "SlidingWindowSpec"
# Any of these drops a block from the cache.
_EVICTION: Final = ("evict_blocks", "_maybe_evict_cached_block")
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
    if not any(callable(getattr(pool, name, None)) for name in _EVICTION):
        return f"the block pool has neither {' nor '.join(_EVICTION)}"
    if "kv_cache_group_ids" not in inspect.signature(pool.get_cached_block).parameters:
        return "the block pool finds blocks without kv_cache_group_ids"
    if not getattr(manager, "enable_caching", False):
        return "prefix caching is off"
    if not callable(getattr(manager, "allocate_slots", None)):
        return "the KV cache manager has no allocate_slots"
    return _unsupported_parallelism(scheduler) or _unsupported_cache(scheduler)


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
    specs = _specs(scheduler)
    if not specs:
        return "the model has no KV cache groups"
    size: Any = getattr(scheduler, "block_size", None)
    if not size or getattr(scheduler, "hash_block_size", size) != size:
        return "blocks and block hashes have different sizes"
    for spec in specs:
        name = type(spec).__name__
        replayed: Any = getattr(spec, "prefix_replay_tokens", 0)
        if name not in (*_FULL, _WINDOW) or replayed:
            return f"KV cache groups of {name} are not verified"
        if getattr(spec, "block_size", None) not in (None, size):
            return "the KV cache groups have blocks of different sizes"
    if _is_plain(specs):
        return ""
    coordinator = getattr(scheduler.kv_cache_manager, "coordinator", None)
    if not callable(getattr(coordinator, "find_longest_cache_hit", None)):
        return "sliding windows need a coordinator that finds hits, and this vLLM has none"
    if getattr(scheduler, "use_eagle", False):
        return "sliding windows together with EAGLE or MTP speculation are not verified"
    return ""


def prefix_cache(scheduler: Any) -> PrefixCache:
    """The cache of a scheduler that is supported."""
    specs = _specs(scheduler)
    manager = scheduler.kv_cache_manager
    return PrefixCache(
        manager.block_pool,
        scheduler.block_size,
        groups=len(specs),
        coordinator=None if _is_plain(specs) else manager.coordinator,
    )


def _specs(scheduler: Any) -> list[Any]:
    config = getattr(scheduler, "kv_cache_config", None)
    groups: Any = getattr(config, "kv_cache_groups", ())
    return [group.kv_cache_spec for group in groups]


def _is_plain(specs: list[Any]) -> bool:
    """One group that keeps every block of a head, whatever its layers attend to."""
    return len(specs) == 1 and type(specs[0]).__name__ in _FULL
