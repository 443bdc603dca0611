"""Which tokens of a prompt are found cached: to the block, on every engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from e2e.engine.client import Json
from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.contract.subject import ADAPTER, Subject
from e2e.engine.server import BLOCK_SIZE, BLOCKS
from e2e.engine.token_prompts import tokens
from e2e.simulator.engine_core import EngineCore
from e2e.simulator.options import SimulatorOptions
from e2e.simulator.sim_request import SamplingParams, SimRequest

pytestmark = pytest.mark.timeout(300)


def cached(client: ContractClient, prompt: Sequence[int], **more: Any) -> int:
    details: Json = client.complete(prompt, **more)["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])


@pytest.mark.parametrize(
    ("sent", "asked", "found"),
    [
        (3 * BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 1, 3),
        (3 * BLOCK_SIZE, 3 * BLOCK_SIZE, 2),
        (3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 1, 3),
        (3 * BLOCK_SIZE - 1, 3 * BLOCK_SIZE + 1, 2),
        (BLOCK_SIZE - 1, BLOCK_SIZE - 1, 0),
        (5 * BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 7, 2),
    ],
)
def test_whole_blocks_are_found_but_never_the_last_token(
    client: ContractClient, sent: int, asked: int, found: int
) -> None:
    assert cached(client, tokens(1, sent)) == 0
    assert cached(client, tokens(1, asked)) == found * BLOCK_SIZE


def test_a_block_counts_only_behind_the_same_head(client: ContractClient) -> None:
    prompt = tokens(2, 4 * BLOCK_SIZE + 1)
    client.complete(prompt)
    other_head = [prompt[0] + 1, *prompt[1:]]
    assert cached(client, other_head) == 0
    other_middle = [*prompt[: 2 * BLOCK_SIZE + 3], 299, *prompt[2 * BLOCK_SIZE + 4 :]]
    assert cached(client, other_middle) == 2 * BLOCK_SIZE


def test_generated_tokens_are_cached_too(client: ContractClient) -> None:
    prompt = tokens(3, BLOCK_SIZE - 2)
    done = client.complete(prompt, 6, temperature=0.0, return_token_ids=True)
    generated = done["choices"][0]["token_ids"]
    assert cached(client, [*prompt, *generated[:2], 290]) == BLOCK_SIZE


def test_the_least_recently_used_tail_goes_first(client: ContractClient) -> None:
    """Of 127 blocks 120 are cached; the next 21 take 7 that are not, and 14 of the oldest tail."""
    first, second, third, new = (tokens(seed, 40 * BLOCK_SIZE + 1) for seed in (11, 12, 13, 14))
    for prompt in (first, second, third):
        assert cached(client, prompt) == 0
    assert cached(client, first) == 40 * BLOCK_SIZE
    assert cached(client, new[: 20 * BLOCK_SIZE + 1]) == 0
    head = second[: 30 * BLOCK_SIZE + 1]
    assert cached(client, head) == (40 - 14) * BLOCK_SIZE


def test_salts_and_adapters_share_nothing(client: ContractClient) -> None:
    prompt = tokens(21, 3 * BLOCK_SIZE + 1)
    kinds: list[Json] = [
        {}, {"cache_salt": "a" * 16}, {"cache_salt": "b" * 16}, {"model": ADAPTER}
    ]  # fmt: skip
    for more in kinds:
        assert cached(client, prompt, **more) == 0
        assert cached(client, prompt, **more) == 3 * BLOCK_SIZE


def test_an_adapter_of_another_path_shares_nothing(
    client: ContractClient, subject: Subject
) -> None:
    prompt = tokens(22, 3 * BLOCK_SIZE + 1)
    client.post_text("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(subject.adapter)})
    assert cached(client, prompt, model="x") == 0
    client.post_text("/v1/unload_lora_adapter", {"lora_name": "x"})
    other = {"lora_name": "x", "lora_path": str(subject.other_adapter)}
    client.post_text("/v1/load_lora_adapter", other)
    try:
        assert cached(client, prompt, model="x") == 0
        assert cached(client, prompt, model="x") == 3 * BLOCK_SIZE
    finally:
        client.post_text("/v1/unload_lora_adapter", {"lora_name": "x"})


def test_a_reset_empties_the_cache(client: ContractClient) -> None:
    prompt = tokens(23, 3 * BLOCK_SIZE + 1)
    client.complete(prompt)
    assert client.post("/reset_prefix_cache") == {"success": True}
    assert cached(client, prompt) == 0


def test_sleep_loses_the_cache(client: ContractClient) -> None:
    prompt = tokens(24, 3 * BLOCK_SIZE + 1)
    assert client.command("pin", "asleep", prompt)["ok"]
    assert client.post("/sleep?level=1")["status"] == "sleeping"
    state = 'vllm:engine_sleep_state{engine="0",model_name="demo",sleep_state="%s"}'
    try:
        assert client.get("/is_sleeping") == {"is_sleeping": True}
        assert client.metrics()[state % "weights_offloaded"] == 1.0
        assert client.metrics()[state % "awake"] == 0.0
    finally:
        client.post("/wake_up")
    assert client.get("/is_sleeping") == {"is_sleeping": False}
    assert client.metrics()[state % "awake"] == 1.0
    report = client.command("report")
    assert report["pins"] == []
    assert [each["reason"] for each in report["released"] if each["id"] == "asleep"] != []
    assert cached(client, prompt) == 0


def trace(seed: int, length: int) -> list[list[int]]:
    """Prompts of users who come back: heads in common, turns of their own, all sizes."""
    chance = random.Random(seed)  # noqa: S311 - the same trace every time
    heads = [tokens(100 + number, chance.randint(3, 30) * BLOCK_SIZE) for number in range(6)]
    found: list[list[int]] = []
    for number in range(length):
        head = chance.choice(heads)[: chance.randint(1, 30) * BLOCK_SIZE + chance.randint(0, 31)]
        turn = tokens(200 + chance.randint(0, 12), chance.randint(1, 3 * BLOCK_SIZE))
        found.append([*head, *turn] if number % 3 else tokens(300 + number, 12 * BLOCK_SIZE))
    return found


def predicted(prompts: Sequence[Sequence[int]], size: int = BLOCKS) -> list[int]:
    """Return what the simulated cache says of each prompt, one after the other."""
    options = SimulatorOptions(blocks=size, block_size=BLOCK_SIZE, plugin=False)
    core = EngineCore(options, 0.0)
    found: list[int] = []
    for number, prompt in enumerate(prompts):
        request = SimRequest(
            str(number), list(prompt), SamplingParams(max_tokens=1), options.block_size
        )
        core.add(request)
        while core.has_work():
            core.complete(core.schedule(), 0.0)
        found.append(request.num_cached_tokens or 0)
    return found


def test_a_long_trace_is_predicted_to_the_block(client: ContractClient) -> None:
    """The simulator's cache, in this process, foresees what the engine evicts and keeps."""
    prompts = trace(seed=7, length=45)
    expected = predicted(prompts)
    assert sum(1 for each in expected if each) > 10
    assert [cached(client, prompt) for prompt in prompts] == expected
