"""The metrics page, with vLLM 0.32's names and labels for what is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.simulator.engine_core import EngineCore
from e2e.simulator.histogram import Histogram

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
REASONS = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


def page(core: EngineCore) -> str:
    """Return everything that is counted just now."""
    return "\n".join(_lines(core)) + "\n"


def _lines(core: EngineCore) -> Iterator[str]:
    options, counters = core.options, core.counters
    labels = f'engine="0",model_name="{options.model}"'
    stats = core.stats()
    cache = core.scheduler.kv_cache_manager.stats
    yield from _sample("process_start_time_seconds", "gauge", "", core.booted)
    yield from _gauge("num_requests_running", labels, stats.num_running_reqs)
    yield from _gauge("num_requests_waiting", labels, stats.num_waiting_reqs)
    yield from _family("num_requests_waiting_by_reason", "gauge", labels, "reason", {
        "capacity": stats.num_waiting_reqs, "deferred": 0,
    })  # fmt: skip
    yield from _family("engine_sleep_state", "gauge", labels, "sleep_state", {
        name: float(level == core.sleep_level) for level, name in enumerate(SLEEP_STATES)
    })  # fmt: skip
    yield from _gauge("kv_cache_usage_perc", labels, stats.kv_cache_usage)
    yield from _counter("prefix_cache_queries_total", labels, cache.queries)
    yield from _counter("prefix_cache_hits_total", labels, cache.hits)
    yield from _counter("num_preemptions_total", labels, core.scheduler.preemptions)
    yield from _counter("prompt_tokens_total", labels, counters.prompt_tokens)
    yield from _family("prompt_tokens_by_source_total", "counter", labels, "source", {
        "local_compute": counters.prompt_tokens - counters.cached_tokens,
        "local_cache_hit": counters.cached_tokens,
        "external_kv_transfer": 0,
    })  # fmt: skip
    yield from _counter("prompt_tokens_cached_total", labels, counters.cached_tokens)
    yield from _family("prompt_tokens_cached_by_source_total", "counter", labels, "source", {
        source: cache.hits if source == "device" else 0 for source in SOURCES
    })  # fmt: skip
    yield from _counter("generation_tokens_total", labels, counters.generation_tokens)
    yield from _family("request_success_total", "counter", labels, "finished_reason", {
        reason: counters.finished[reason] for reason in REASONS
    })  # fmt: skip
    yield from _histogram("time_to_first_token_seconds", labels, core.ttft)
    yield from _histogram("e2e_request_latency_seconds", labels, core.latency)
    yield from _histogram("request_prefill_kv_computed_tokens", labels, core.computed)
    config = {
        "block_size": options.block_size,
        "enable_prefix_caching": True,
        "engine": 0,
        "num_gpu_blocks": options.blocks,
        "num_gpu_blocks_override": options.blocks,
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": None,
    }
    named = ",".join(f'{name}="{value}"' for name, value in config.items())
    yield from _sample("vllm:cache_config_info", "gauge", named, 1)


def _gauge(name: str, labels: str, value: float) -> Iterator[str]:
    return _sample(f"vllm:{name}", "gauge", labels, value)


def _counter(name: str, labels: str, value: float) -> Iterator[str]:
    return _sample(f"vllm:{name}", "counter", labels, value)


def _sample(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"


def _family(
    name: str, kind: str, labels: str, label: str, values: dict[str, float]
) -> Iterator[str]:
    yield f"# TYPE vllm:{name} {kind}"
    for key, value in values.items():
        yield f"vllm:{name}{{{_with(labels, label, key)}}} {float(value)!r}"


def _histogram(name: str, labels: str, found: Histogram) -> Iterator[str]:
    yield f"# TYPE vllm:{name} histogram"
    for bound, count in found.cumulative():
        yield f"vllm:{name}_bucket{{{_with(labels, 'le', bound)}}} {float(count)!r}"
    yield f"vllm:{name}_count{{{labels}}} {float(found.count)!r}"
    yield f"vllm:{name}_sum{{{labels}}} {found.total!r}"


def _with(labels: str, name: str, value: str) -> str:
    """Add a label; vLLM's page has them in the order of their names."""
    return ",".join(sorted([*labels.split(","), f'{name}="{value}"']))
