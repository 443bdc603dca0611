"""The metrics page: names, labels, and what a few requests add."""

from __future__ import annotations

import re

import pytest

from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.server import BLOCK_SIZE, BLOCKS
from e2e.engine.token_prompts import tokens
from e2e.simulator.engine_core import EngineCore
from e2e.simulator.exposition import page
from e2e.simulator.options import SimulatorOptions

pytestmark = pytest.mark.timeout(300)

LABELS = 'engine="0",model_name="demo"'
ENDED = 'engine="0",finished_reason="length",model_name="demo"'
_SERIES = re.compile(r"([a-zA-Z0-9_:]+)(?:\{(.*)\})?")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


def shapes(series: list[str]) -> dict[str, list[set[str]]]:
    """Return the label names of each name's series."""
    found: dict[str, list[set[str]]] = {}
    for each in series:
        matched = _SERIES.fullmatch(each)
        assert matched is not None, each
        names = {label for label, _ in _LABEL.findall(matched[2] or "")}
        found.setdefault(matched[1], []).append(names)
    return found


def test_every_simulated_series_is_the_engines(client: ContractClient) -> None:
    simulated = page(EngineCore(SimulatorOptions(plugin=False, blocks=BLOCKS), 1.0))
    names = [line.rpartition(" ")[0] for line in simulated.splitlines() if line[0] != "#"]
    real = client.metrics()
    kinds = shapes(list(real))
    for each in names:
        if "cache_config_info" in each:
            continue
        assert each in real, each
    info = shapes([each for each in names if "cache_config_info" in each])
    (labels,) = info["vllm:cache_config_info"]
    assert labels <= kinds["vllm:cache_config_info"][0]


def test_what_is_known_of_the_cache(client: ContractClient) -> None:
    (info,) = [each for each in client.metrics() if each.startswith("vllm:cache_config_info")]
    labels = dict(_LABEL.findall(info))
    assert (labels["block_size"], labels["num_gpu_blocks"]) == (str(BLOCK_SIZE), str(BLOCKS))
    assert labels["enable_prefix_caching"] == "True"
    assert client.metrics()["process_start_time_seconds"] > 1e9


def test_what_two_requests_add(client: ContractClient) -> None:
    prompt = tokens(61, 4 * BLOCK_SIZE + 5)
    before = client.metrics()
    client.complete(prompt, 3, ignore_eos=True)
    client.complete(prompt, 3, ignore_eos=True)
    length, hit = len(prompt), 4 * BLOCK_SIZE
    expected = {
        f"vllm:prefix_cache_queries_total{{{LABELS}}}": 2 * length,
        f"vllm:prefix_cache_hits_total{{{LABELS}}}": hit,
        f"vllm:prompt_tokens_total{{{LABELS}}}": 2 * length,
        f"vllm:prompt_tokens_cached_total{{{LABELS}}}": hit,
        f'vllm:prompt_tokens_cached_by_source_total{{{LABELS},source="device"}}': hit,
        f'vllm:prompt_tokens_cached_by_source_total{{{LABELS},source="host"}}': 0,
        f'vllm:prompt_tokens_by_source_total{{{LABELS},source="local_compute"}}': 2 * length - hit,
        f'vllm:prompt_tokens_by_source_total{{{LABELS},source="local_cache_hit"}}': hit,
        f"vllm:generation_tokens_total{{{LABELS}}}": 6,
        f"vllm:request_success_total{{{ENDED}}}": 2,
        f"vllm:time_to_first_token_seconds_count{{{LABELS}}}": 2,
        f"vllm:request_prefill_kv_computed_tokens_sum{{{LABELS}}}": 2 * length - hit,
    }  # fmt: skip

    def added() -> dict[str, float]:
        now = client.metrics()
        return {name: now[name] - before[name] for name in expected}

    client.eventually(lambda: added() == expected, lambda: str(added()))
