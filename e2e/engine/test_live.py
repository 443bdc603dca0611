"""The plugin in a live vLLM server on the CPU, over HTTP. Needs the engine environment.

The cache has 127 usable blocks of 32 tokens and a budget of 63: 2,016 tokens can be pinned.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from e2e.engine.client import EngineClient
from e2e.engine.server import BLOCK_SIZE, MAX_MODEL_LEN, RunningEngine, running_engine
from e2e.engine.token_prompts import tokens

pytestmark = pytest.mark.timeout(900)

CACHE_TOKENS = 127 * BLOCK_SIZE
PREFIX_BLOCKS = 40
WAIT_SECONDS = 60.0


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            assert value
            return value
        time.sleep(0.1)


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    with running_engine(tell, variables={"VLLM_SERVER_DEV_MODE": "1"}) as engine:
        yield engine


@pytest.fixture
def client(engine: RunningEngine) -> Iterator[EngineClient]:
    client = EngineClient(engine)
    client.learn_epoch()
    for pin in client.command("report")["pins"]:
        client.command("unpin", pin["id"])
    client.post("/reset_prefix_cache")
    yield client
    client.close()


def press(client: EngineClient, times: float) -> None:
    """Other users' traffic, so many times the size of the cache."""
    sent = 0
    while sent < times * CACHE_TOKENS:
        prompt = tokens(5000 + time.time_ns() % 100_000, 1600)
        sent += int(client.complete(prompt)["usage"]["prompt_tokens"])


def pins_of(client: EngineClient) -> dict[str, Any]:
    return {pin["id"]: pin for pin in client.command("report")["pins"]}


def test_a_pinned_prefix_stays_cached_and_an_unpinned_one_does_not(client: EngineClient) -> None:
    pinned = tokens(1, PREFIX_BLOCKS * BLOCK_SIZE + 1)
    unpinned = tokens(2, PREFIX_BLOCKS * BLOCK_SIZE + 1)
    user_turn = tokens(3, 40)
    started = time.monotonic()
    answer = client.command("pin", "kept", pinned, priority=5)
    cold = time.monotonic() - started
    assert answer["ok"], answer
    assert answer["blocks_pinned"] == PREFIX_BLOCKS
    client.complete(unpinned)
    press(client, times=3)

    assert client.cached_tokens([*unpinned[:-1], *user_turn]) == 0
    warm = cold
    for seed in (4, 5, 6):
        # The best of three: others may be using the processor.
        started = time.monotonic()
        chat = [*pinned[:-1], *tokens(seed, 40)]
        assert client.cached_tokens(chat) == PREFIX_BLOCKS * BLOCK_SIZE
        warm = min(warm, time.monotonic() - started)
    tell(f"{len(pinned)} tokens: cold {cold:.2f} s, warm {warm:.2f} s")
    assert warm < cold / 3
    pin = pins_of(client)["kept"]
    assert (pin["hits"], pin["priority"]) == (3, 5)
    assert pin["resident_tokens"] == pin["pinned_tokens"] == PREFIX_BLOCKS * BLOCK_SIZE

    assert client.command("unpin", "kept")["pins"][0]["state"] == "released"
    press(client, times=1.5)
    assert client.cached_tokens([*pinned[:-1], *user_turn]) == 0


def test_a_prompt_larger_than_what_pins_leave_free_completes(client: EngineClient) -> None:
    assert client.command("pin", "low", tokens(11, 40 * BLOCK_SIZE + 1), priority=1)["ok"]
    assert client.command("pin", "high", tokens(12, 20 * BLOCK_SIZE + 1), priority=2)["ok"]
    done: list[int] = []

    def ask(seed: int, count: int) -> None:
        done.append(int(client.complete(tokens(seed, count))["usage"]["prompt_tokens"]))

    sizes = [MAX_MODEL_LEN - 700, 20, 33]
    threads = [
        threading.Thread(target=ask, args=(20 + number, size)) for number, size in enumerate(sizes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS * 2)
    assert sorted(done) == sorted(sizes)
    report = client.command("report")
    assert [pin["id"] for pin in report["pins"]] == ["high"]
    assert report["released"][-1]["reason"] == "PressureValve"


def test_a_prompt_of_the_maximum_length_completes(client: EngineClient) -> None:
    client.command("pin", "any", tokens(13, 40 * BLOCK_SIZE + 1))
    usage = client.complete(tokens(14, MAX_MODEL_LEN - 1))["usage"]
    assert usage["prompt_tokens"] == MAX_MODEL_LEN - 1


def test_a_client_that_hangs_up_leaves_nothing_pinned(
    engine: RunningEngine, client: EngineClient
) -> None:
    prompt = tokens(21, 40 * BLOCK_SIZE + 1)
    command = client.sign("pin", "orphan", 40 * BLOCK_SIZE, prompt)
    body = {
        "model": "demo",
        "prompt": prompt,
        "max_tokens": 400,
        "ignore_eos": True,
        "vllm_xargs": {"promptprefix": command},
    }
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{engine.url}/v1/completions", json=body, timeout=2.0)
    running = 'vllm:num_requests_running{engine="0",model_name="demo"}'
    eventually(lambda: client.metrics()[running] == 0)
    report = client.command("report")
    assert report["pins"] == []
    assert report["blocks_pinned"] == 0
    assert client.deliver(command, prompt)["reason"] == "Replayed"


def test_a_cache_reset_works_with_pins_held(client: EngineClient) -> None:
    prompt = tokens(31, 20 * BLOCK_SIZE + 1)
    before = client.command("pin", "gone", prompt)
    client.post("/reset_prefix_cache")
    report = client.command("report")
    assert report["pins"] == []
    assert report["pin_epoch"] == before["pin_epoch"] + 1
    assert report["epoch"] == before["epoch"]
    assert client.cached_tokens(prompt) == 0
    assert client.command("pin", "gone", prompt)["ok"]


def test_a_pause_with_pins_held(client: EngineClient) -> None:
    client.command("pin", "gone", tokens(32, 20 * BLOCK_SIZE + 1))
    client.post("/pause")
    client.post("/resume")
    assert client.complete(tokens(33, 40))["usage"]["completion_tokens"] == 1


def test_forged_and_replayed_commands_do_nothing(client: EngineClient) -> None:
    prompt = tokens(41, 10 * BLOCK_SIZE + 1)
    genuine = client.sign("pin", "mine", 10 * BLOCK_SIZE, prompt)
    forged = json.dumps({**json.loads(genuine), "id": "theirs"})
    refused = client.deliver(forged, prompt)
    assert refused.keys() == {"v", "ok", "reason", "message"}
    assert refused["reason"] == "BadMac"
    assert client.deliver(genuine, tokens(42, 400))["reason"] == "BadMac"
    assert client.deliver(genuine, prompt)["ok"]
    assert client.command("unpin", "mine")["ok"]
    assert client.deliver(genuine, prompt)["reason"] == "Replayed"
    expired = client.sign("pin", "mine", 10 * BLOCK_SIZE, prompt, expiry=1)
    assert client.deliver(expired, prompt)["reason"] == "Expired"
    other = client.sign("pin", "mine", 10 * BLOCK_SIZE, prompt, epoch="another")
    assert client.deliver(other, prompt)["reason"] == "WrongEpoch"
    assert pins_of(client) == {}


def test_over_budget_is_refused_with_the_numbers(client: EngineClient) -> None:
    assert client.command("pin", "first", tokens(51, 40 * BLOCK_SIZE + 1))["budget_blocks"] == 63
    answer = client.command("pin", "second", tokens(52, 30 * BLOCK_SIZE + 1))
    assert (answer["ok"], answer["reason"]) == (False, "BudgetExceeded")
    assert answer["blocks_pinned"] == 40
    assert list(pins_of(client)) == ["first"]


def test_requests_without_a_command_get_no_answer(client: EngineClient) -> None:
    plain = client.complete(tokens(61, 40))
    assert plain["kv_transfer_params"] is None
    other = client.complete(tokens(61, 40), vllm_xargs={"other": "x"})
    assert other["kv_transfer_params"] is None


def test_several_choices_and_streams_do_no_harm(client: EngineClient) -> None:
    prompt = tokens(62, 4 * BLOCK_SIZE + 1)
    command = client.sign("pin", "twice", 4 * BLOCK_SIZE, prompt)
    client.complete(prompt, n=2, temperature=1.0, vllm_xargs={"promptprefix": command})
    assert client.command("report")["blocks_pinned"] == 4


def test_pins_are_not_load(client: EngineClient) -> None:
    client.command("pin", "held", tokens(71, 40 * BLOCK_SIZE + 1))
    usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="demo"}'
    eventually(lambda: client.metrics()[usage] == 0.0)
    assert client.command("report")["blocks_free"] < 90


def test_chats_hit_a_prefix_that_was_pinned_by_its_tokens(client: EngineClient) -> None:
    system = " ".join(f"Rule {number}: answer in one word." for number in range(60))

    def render(user: str) -> dict[str, Any]:
        turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return {"model": "demo", "messages": turns}

    one, two = (client.post("/tokenize", render(user))["tokens"] for user in ("a", "zz"))
    common = next(place for place in range(len(one)) if one[place] != two[place])
    head = common // BLOCK_SIZE * BLOCK_SIZE
    assert head >= 10 * BLOCK_SIZE
    assert client.command("pin", "chat", one[: head + 1])["ok"]
    done = client.post("/v1/chat/completions", {**render("hello there"), "max_tokens": 1})
    assert done["usage"]["prompt_tokens_details"]["cached_tokens"] == head
    assert pins_of(client)["chat"]["hits"] == 1


def test_leases_run_out(client: EngineClient) -> None:
    client.command("pin", "short", tokens(81, 4 * BLOCK_SIZE + 1), lease=1)
    released = eventually(lambda: client.command("report")["released"])
    eventually(lambda: pins_of(client) == {})
    assert released is not None
    assert client.command("renew", "short")["reason"] == "UnknownPin"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_every_api_answers(client: EngineClient, path: str) -> None:
    tool = {"name": "look_up", "description": "d", "parameters": {"type": "object"}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"type": "function", "function": tool}],
            "tool_choice": "none",
            "max_tokens": 2,
        },
        "/v1/responses": {"input": "hello", "max_output_tokens": 2},
        "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    }
    assert client.post(path, {"model": "demo", **bodies[path]})["usage"]
