"""Reading the engine's metrics."""

from __future__ import annotations

import pytest

from promptprefix.wire import MAX_COUNT
from promptprefix_sidecar.exposition import (
    MAX_SOURCES,
    EngineMetrics,
    ExpositionError,
    read_exposition,
)

PAGE = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79596209562e+09
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="demo"} 2.0
vllm:num_requests_waiting{engine="1",model_name="demo"} 1.0
vllm:num_requests_running{engine="0",model_name="demo"} 4.0
vllm:num_requests_running{engine="1",model_name="demo"} 5.0
vllm:engine_sleep_state{engine="0",model_name="demo",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="demo",sleep_state="discard_all"} 0.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="demo",source="device"} 64.0
vllm:prompt_tokens_cached_by_source_total{engine="1",model_name="demo",source="device"} 32.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="demo",source="host"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="demo",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="demo"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="demo"} 1.234567e+06
vllm:prefix_cache_queries_created{engine="0",model_name="demo"} 1.7959621962586079e+09
vllm:prefix_cache_hits_total{engine="0",model_name="demo"} 64.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",num_gpu_blocks="128"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="demo"} 1.0
"""


def test_the_known_series_are_read() -> None:
    assert read_exposition(PAGE) == EngineMetrics(
        start_time="1795962095.62",
        block_size=32,
        blocks_total=128,
        prefix_caching=True,
        cache_usage=0.5,
        running=9,
        waiting=3,
        cache_hits=64,
        cache_queries=1_234_567,
        cached_by_source={"device": 96, "host": 0},
    )


@pytest.mark.parametrize(("awake", "asleep"), [("1.0", False), ("0.0", True)])
def test_one_rank_asleep_is_an_engine_asleep(awake: str, asleep: bool) -> None:
    page = (
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0\n'
        f'vllm:engine_sleep_state{{engine="1",sleep_state="awake"}} {awake}\n'
        'vllm:engine_sleep_state{engine="1",sleep_state="weights_offloaded"} 0.0\n'
    )
    assert read_exposition(page).asleep is asleep


def test_sources_are_bounded() -> None:
    name = "vllm:prompt_tokens_cached_by_source_total"
    page = "".join(f'{name}{{source="s{number}"}} 1.0\n' for number in range(100))
    assert len(read_exposition(page).cached_by_source) == MAX_SOURCES


def test_what_is_missing_is_unknown() -> None:
    assert read_exposition("") == EngineMetrics()
    odd = 'vllm:cache_config_info{block_size="None",enable_prefix_caching="False"} 1\n'
    assert read_exposition(odd) == EngineMetrics(prefix_caching=False)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_waiting{engine= nonsense",
        "vllm:num_requests_waiting NaN",
        "vllm:prefix_cache_hits_total +Inf",
        'vllm:cache_config_info{block_size="²"} 1.0',
    ],
)
def test_a_broken_page_is_refused(line: str) -> None:
    with pytest.raises(ExpositionError, match="metrics can't be read"):
        read_exposition(f"{line}\n")


@pytest.mark.parametrize("value", ["-5", "1e300"])
def test_numbers_that_nobody_can_mean_end_in_bounds(value: str) -> None:
    page = "\n".join(
        [
            f"vllm:kv_cache_usage_perc {value}",
            f"vllm:num_requests_running {value}",
            f"vllm:num_requests_waiting {value}",
            f'vllm:prompt_tokens_cached_by_source_total{{source="device"}} {value}',
            f'vllm:cache_config_info{{block_size="{"9" * 30}",num_gpu_blocks="{"9" * 18}"}} 1',
        ]
    )
    found = read_exposition(page)
    assert 0 <= found.cache_usage <= 1
    assert found.block_size == 0
    counts = (found.running, found.waiting, found.blocks_total, *found.cached_by_source.values())
    assert all(0 <= each <= MAX_COUNT for each in counts)
