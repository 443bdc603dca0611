"""Release, salts, adapters and sleep in a live vLLM server on the CPU. Needs its environment.

The cache has 127 usable blocks of 32 tokens and a budget of 63.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.adapter import ensure_adapter
from e2e.engine.client import EngineClient
from e2e.engine.environment import ensure_environment
from e2e.engine.server import BLOCK_SIZE, EngineOptions, RunningEngine, running_engine
from e2e.engine.token_prompts import tokens

pytestmark = pytest.mark.timeout(900)

BLOCKS = 20
HEAD = BLOCKS * BLOCK_SIZE
LORA = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8")
VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def chat(prefix: list[int], seed: int) -> list[int]:
    return [*prefix[:HEAD], *tokens(seed, 40)]


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    options = EngineOptions(extra=LORA)
    with running_engine(tell, options, variables=VARIABLES) as engine:
        yield engine


@pytest.fixture
def client(engine: RunningEngine) -> Iterator[EngineClient]:
    client = EngineClient(engine)
    client.learn_epoch()
    client.post("/reset_prefix_cache")
    yield client
    client.close()


def press(client: EngineClient, seed: int) -> None:
    """Other users' traffic, one and a half times the size of the cache."""
    for number in range(4):
        client.complete(tokens(seed + number, 1600))


def watched_of(client: EngineClient) -> dict[str, Any]:
    return {entry["id"]: entry for entry in client.command("report")["watched"]}


def released_of(client: EngineClient) -> dict[str, str]:
    return {item["id"]: item["reason"] for item in client.command("report")["released"]}


def test_evict_drops_what_unpin_leaves(client: EngineClient) -> None:
    prefix = tokens(1, HEAD + 1)
    assert client.command("pin", "evicted", prefix)["ok"]
    assert client.cached_tokens(chat(prefix, 2)) == HEAD
    answer = client.command("evict", "evicted")
    assert (answer["pins"][0]["released_reason"], answer["blocks_pinned"]) == ("Evicted", 0)
    assert client.cached_tokens(chat(prefix, 3)) == 0
    assert client.command("pin", "evicted", prefix)["ok"]
    client.command("unpin", "evicted")
    assert client.cached_tokens(chat(prefix, 4)) == HEAD
    assert client.command("evict", "evicted")["ok"]
    assert client.cached_tokens(chat(prefix, 5)) == 0


def test_users_of_a_released_prefix_are_counted_cached_or_not(client: EngineClient) -> None:
    prefix = tokens(11, HEAD + 1)
    client.command("pin", "watched", prefix)
    client.complete(chat(prefix, 12))
    client.command("unpin", "watched")
    client.complete(chat(prefix, 13))
    press(client, 2000)
    assert watched_of(client)["watched"]["resident_tokens"] == 0
    client.complete(chat(prefix, 14))
    client.complete([*prefix[: HEAD - 1], *tokens(15, 40)])
    entry = watched_of(client)["watched"]
    assert (entry["matches"], entry["tokens"]) == (3, HEAD)
    assert entry["last_match_age_s"] < 60
    (pin,) = client.command("pin", "watched", prefix)["pins"]
    assert (pin["matches"], pin["hits"]) == (3, 0)
    assert "watched" not in watched_of(client)


def test_a_prefix_is_warmed_in_pieces(client: EngineClient) -> None:
    prefix = tokens(21, HEAD + 1)
    for end in (8 * BLOCK_SIZE, 16 * BLOCK_SIZE):
        answer = client.command("warm", "", prefix[: end + 1])
        assert (answer["ok"], answer["blocks_pinned"]) == (True, 0)
        assert client.cached_tokens(chat(prefix, 22)) >= end
    with ThreadPoolExecutor(3) as pool:
        last = pool.submit(client.command, "warm", "", prefix)
        users = [pool.submit(client.complete, tokens(23 + number, 900)) for number in range(2)]
        assert last.result()["ok"]
        assert all(user.result()["usage"] for user in users)
    assert client.cached_tokens(chat(prefix, 24)) == HEAD
    assert client.command("report")["blocks_pinned"] == 0


def test_tenants_with_the_same_text_and_other_salts_share_nothing(client: EngineClient) -> None:
    prefix = tokens(31, HEAD + 1)
    one, two = {"cache_salt": "tenant one"}, {"cache_salt": "tenant two"}
    assert client.command("pin", "one", prefix, request=one)["blocks_pinned"] == BLOCKS
    assert client.cached_tokens(chat(prefix, 32), **one) == HEAD
    assert client.cached_tokens(chat(prefix, 33), **two) == 0
    assert client.cached_tokens(chat(prefix, 34)) == 0
    assert client.command("pin", "two", prefix, request=two)["blocks_pinned"] == 2 * BLOCKS
    press(client, 2100)
    assert client.cached_tokens(chat(prefix, 35), **one) == HEAD
    assert client.cached_tokens(chat(prefix, 36), **two) == HEAD
    assert client.cached_tokens(chat(prefix, 37)) == 0
    matches = {pin["id"]: pin["matches"] for pin in client.command("report")["pins"]}
    assert matches == {"one": 2, "two": 1}
    assert client.command("evict", "one")["blocks_pinned"] == BLOCKS
    assert client.cached_tokens(chat(prefix, 38), **one) == 0
    assert client.cached_tokens(chat(prefix, 39), **two) == HEAD


def scores(client: EngineClient, prompt: list[int], model: str) -> list[float]:
    """Log-probabilities of the likeliest next tokens: they tell one adapter from another."""
    done = client.complete(prompt, max_tokens=4, temperature=0, logprobs=1, model=model)
    found: list[float] = done["choices"][0]["logprobs"]["token_logprobs"]
    return found


def load(client: EngineClient, name: str, path: Path, **more: Any) -> None:
    body = {"lora_name": name, "lora_path": str(path), **more}
    client._http.post("/v1/load_lora_adapter", json=body).raise_for_status()


def unload(client: EngineClient, name: str) -> None:
    body = {"lora_name": name}
    client._http.post("/v1/unload_lora_adapter", json=body).raise_for_status()


def test_an_adapter_that_is_loaded_anew_never_meets_old_blocks(
    client: EngineClient, tmp_path: Path
) -> None:
    python = ensure_environment(tell).python
    path = ensure_adapter(python, tmp_path / "adapter", seed=1)
    copy = ensure_adapter(python, tmp_path / "copy", seed=2)
    prefix, clerk = tokens(41, HEAD + 1), {"model": "clerk"}
    load(client, "clerk", path)
    assert client.command("pin", "clerk", prefix, request=clerk)["ok"]
    assert client.cached_tokens(chat(prefix, 42), **clerk) == HEAD
    assert client.cached_tokens(chat(prefix, 43)) == 0
    old = scores(client, chat(prefix, 44), "clerk")

    unload(client, "clerk")
    ensure_adapter(python, path, seed=2)
    load(client, "clerk", path)
    assert client.cached_tokens(chat(prefix, 45), **clerk) == 0
    assert released_of(client)["clerk"] == "AdapterChanged"
    assert client.command("pin", "clerk", prefix, request=clerk)["ok"]
    assert client.cached_tokens(chat(prefix, 46), **clerk) == HEAD
    new = scores(client, chat(prefix, 47), "clerk")
    load(client, "fresh", copy)
    expected = scores(client, chat(prefix, 47), "fresh")
    assert new == pytest.approx(expected, abs=1e-3)
    assert old != pytest.approx(scores(client, chat(prefix, 44), "fresh"), abs=1e-3)

    load(client, "clerk", path, load_inplace=True)
    assert client.cached_tokens(chat(prefix, 48), **clerk) == 0
    refused = client.command("pin", "clerk", prefix, request=clerk)
    assert (refused["ok"], refused["reason"]) == (False, "AdapterInPlace")
    assert client.command("report")["pins"] == []


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleep_and_wake(client: EngineClient, level: int) -> None:
    prefix = tokens(51 + level, HEAD + 1)
    before = client.command("pin", "sleeper", prefix)["pin_epoch"]
    client._http.post("/sleep", params={"level": level}).raise_for_status()
    assert client._http.get("/is_sleeping").json()["is_sleeping"]
    client._http.post("/wake_up").raise_for_status()
    assert not client._http.get("/is_sleeping").json()["is_sleeping"]
    report = client.command("report")
    assert report["pin_epoch"] == before + (level > 0)
    assert [pin["id"] for pin in report["pins"]] == (["sleeper"] if level == 0 else [])
    assert client.cached_tokens(chat(prefix, 60 + level)) == (HEAD if level == 0 else 0)
    assert client.command("pin", "sleeper", prefix)["ok"]
