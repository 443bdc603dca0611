"""What the sidecar reads from the engine's Prometheus page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from promptprefix.wire import MAX_COUNT

START_TIME = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"
CACHE_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
SLEEP_STATE = "vllm:engine_sleep_state"
CACHE_HITS = "vllm:prefix_cache_hits_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"

_WANTED = (
    START_TIME,
    CACHE_CONFIG,
    CACHE_USAGE,
    RUNNING,
    WAITING,
    SLEEP_STATE,
    CACHE_HITS,
    CACHE_QUERIES,
    CACHED_BY_SOURCE,
)
MAX_SOURCES = 16
DEVICE = "device"
"""The source of what was in GPU memory; all others are tiers behind it."""


@dataclass(frozen=True)
class EngineMetrics:
    """``start_time`` is the engine process's start (Unix seconds) as text, empty if not published.

    Numbers are summed over the engine's data-parallel ranks; ``cache_usage`` is the highest.
    ``asleep``: some rank is. ``cached_by_source`` counts cached prompt tokens by where they were.
    """

    start_time: str = ""
    block_size: int = 0
    blocks_total: int = 0
    prefix_caching: bool = True
    cache_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    asleep: bool = False
    cache_hits: int = 0
    cache_queries: int = 0
    cached_by_source: Mapping[str, int] = field(default_factory=dict)


class ExpositionError(ValueError):
    """The page is not in Prometheus' text format."""


def read_exposition(text: str) -> EngineMetrics:
    """Return the values of the series that the sidecar knows; raise `ExpositionError`."""
    # The whole page has hundreds of histogram lines; parsing only what is wanted costs a tenth.
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        samples = [sample for family in families for sample in family.samples]
        if not all(math.isfinite(sample.value) for sample in samples):
            raise ValueError("a value is not finite")
        return _values(samples)
    except (ValueError, OverflowError) as error:
        raise ExpositionError(f"the engine's metrics can't be read: {error}") from error


def _values(samples: list[Sample]) -> EngineMetrics:
    config = next((s.labels for s in samples if s.name == CACHE_CONFIG), {})
    return EngineMetrics(
        start_time=next((repr(s.value) for s in samples if s.name == START_TIME), ""),
        block_size=_label_number(config.get("block_size", "")),
        blocks_total=_label_number(config.get("num_gpu_blocks", "")),
        prefix_caching=config.get("enable_prefix_caching", "True") != "False",
        cache_usage=min(
            max((s.value for s in samples if s.name == CACHE_USAGE and s.value > 0), default=0.0),
            1.0,
        ),
        running=_total(samples, RUNNING),
        waiting=_total(samples, WAITING),
        asleep=any(
            s.name == SLEEP_STATE and s.labels.get("sleep_state") == "awake" and s.value == 0
            for s in samples
        ),
        cache_hits=_total(samples, CACHE_HITS),
        cache_queries=_total(samples, CACHE_QUERIES),
        cached_by_source=_by_source(samples),
    )


def _by_source(samples: list[Sample]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for sample in samples:
        source = sample.labels.get("source", "")
        known = source in found or len(found) < MAX_SOURCES
        if sample.name == CACHED_BY_SOURCE and source and known:
            found[source] = _count(found.get(source, 0) + sample.value)
    return found


def _total(samples: list[Sample], name: str) -> int:
    return _count(sum(sample.value for sample in samples if sample.name == name))


def _label_number(text: str) -> int:
    return _count(int(text)) if text.isdigit() and len(text) < 20 else 0


def _count(value: float) -> int:
    """Return a number that the wire can carry, whatever the page says."""
    return round(min(max(value, 0), MAX_COUNT))
