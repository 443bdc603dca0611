"""What the sidecar reads from the engine's Prometheus page."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

START_TIME = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"
CACHE_USAGE = "vllm:kv_cache_usage_perc"
WAITING = "vllm:num_requests_waiting"
CACHE_HITS = "vllm:prefix_cache_hits_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"

_WANTED = (START_TIME, CACHE_CONFIG, CACHE_USAGE, WAITING, CACHE_HITS, CACHE_QUERIES)


@dataclass(frozen=True)
class EngineMetrics:
    """``start_time`` is the engine process's start (Unix seconds) as text, empty if not published.

    Numbers are summed over the engine's data-parallel ranks; ``cache_usage`` is the highest.
    """

    start_time: str = ""
    block_size: int = 0
    blocks_total: int = 0
    prefix_caching: bool = True
    cache_usage: float = 0.0
    waiting: int = 0
    cache_hits: int = 0
    cache_queries: int = 0


class ExpositionError(ValueError):
    """The page is not in Prometheus' text format."""


def read_exposition(text: str) -> EngineMetrics:
    """Return the values of the series that the sidecar knows; raise `ExpositionError`."""
    # The whole page has hundreds of histogram lines; parsing only what is wanted costs a tenth.
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return _values([sample for family in families for sample in family.samples])
    except (ValueError, OverflowError) as error:
        raise ExpositionError(f"the engine's metrics can't be read: {error}") from error


def _values(samples: list[Sample]) -> EngineMetrics:
    config = next((s.labels for s in samples if s.name == CACHE_CONFIG), {})
    return EngineMetrics(
        start_time=next((repr(s.value) for s in samples if s.name == START_TIME), ""),
        block_size=_label_number(config.get("block_size", "")),
        blocks_total=_label_number(config.get("num_gpu_blocks", "")),
        prefix_caching=config.get("enable_prefix_caching", "True") != "False",
        cache_usage=max((s.value for s in samples if s.name == CACHE_USAGE), default=0.0),
        waiting=_total(samples, WAITING),
        cache_hits=_total(samples, CACHE_HITS),
        cache_queries=_total(samples, CACHE_QUERIES),
    )


def _total(samples: list[Sample], name: str) -> int:
    return round(sum(sample.value for sample in samples if sample.name == name))


def _label_number(text: str) -> int:
    return int(text) if text.isdigit() else 0
