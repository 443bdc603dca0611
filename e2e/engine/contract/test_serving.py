"""The HTTP API: tokens, usage, ends, streams and errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.contract.subject import ADAPTER, Subject
from e2e.engine.server import BLOCK_SIZE, MAX_MODEL_LEN
from e2e.engine.token_prompts import tokens

pytestmark = pytest.mark.timeout(300)

SYSTEM = " ".join(f"Rule {number}: answer in one word." for number in range(60))
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}


def chat(user: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return {"model": "demo", "messages": turns, **more}


def events(client: ContractClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the data of a stream's events, the end marker as it is."""
    text = client.raw("POST", path, json=body).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_what_it_says_of_itself(client: ContractClient) -> None:
    assert client.get("/version") == {"version": "0.32.0"}
    assert client.raw("GET", "/health").status_code == 200
    served = {each["id"]: each for each in client.get("/v1/models")["data"]}
    assert list(served) == ["demo", ADAPTER]
    assert served["demo"]["max_model_len"] == MAX_MODEL_LEN
    assert served[ADAPTER]["max_model_len"] is None
    assert served[ADAPTER]["parent"] == "demo"


def test_tokens_are_those_of_the_request(client: ContractClient) -> None:
    asked = client.post("/tokenize", chat("hello"))
    done = client.post("/v1/chat/completions", chat("hello", max_tokens=1))
    assert asked["count"] == len(asked["tokens"]) == done["usage"]["prompt_tokens"]
    assert asked["max_model_len"] == MAX_MODEL_LEN
    assert client.post("/tokenize", chat("hello"))["tokens"] == asked["tokens"]


def test_two_users_share_the_head(client: ContractClient) -> None:
    one, two = (client.post("/tokenize", chat(user))["tokens"] for user in ("a", "zz"))
    common = next(place for place in range(len(one)) if one[place] != two[place])
    assert common > 10 * BLOCK_SIZE
    client.post("/v1/chat/completions", chat("a", max_tokens=1))
    use = client.post("/v1/chat/completions", chat("zz", max_tokens=1))["usage"]
    assert use["prompt_tokens_details"]["cached_tokens"] == common // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"reasoning": "high"}},
        {"add_generation_prompt": False},
    ],
)
def test_what_changes_the_rendering_changes_the_tokens(
    client: ContractClient, more: dict[str, Any]
) -> None:
    plain = client.post("/tokenize", chat("hello"))["tokens"]
    assert client.post("/tokenize", chat("hello", **more))["tokens"] != plain


def test_tools_that_must_not_be_called_are_not_rendered(client: ContractClient) -> None:
    plain = client.post("/v1/chat/completions", chat("hello", max_tokens=1))["usage"]
    with_tools = chat("hello", max_tokens=1, tools=[TOOL], tool_choice="none")
    use = client.post("/v1/chat/completions", with_tools)["usage"]
    assert use["prompt_tokens"] == plain["prompt_tokens"]


@pytest.mark.parametrize("count", [1, 5])
def test_usage_and_the_end_by_length(client: ContractClient, count: int) -> None:
    done = client.complete(tokens(1, 40), count, ignore_eos=True)
    (choice,) = done["choices"]
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert done["object"] == "text_completion"
    assert done["id"].startswith("cmpl-")
    assert done["kv_transfer_params"] is None
    use = done["usage"]
    assert (use["prompt_tokens"], use["completion_tokens"]) == (40, count)
    assert use["total_tokens"] == 40 + count


def test_the_end_by_a_stop_string(client: ContractClient) -> None:
    done = client.post("/v1/chat/completions", chat("hello", max_tokens=300, stop=["e"]))
    (choice,) = done["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "e")
    assert "e" not in choice["message"]["content"]
    assert choice["message"]["role"] == "assistant"


def test_the_end_at_the_longest_sequence(client: ContractClient) -> None:
    done = client.complete(tokens(2, MAX_MODEL_LEN - 3), 10, ignore_eos=True)
    assert done["choices"][0]["finish_reason"] == "length"
    assert done["usage"]["completion_tokens"] == 3


def test_several_choices_of_several_prompts(client: ContractClient) -> None:
    body = {"model": "demo", "prompt": [[301, 302, 303], [304]], "n": 2, "max_tokens": 2}
    done = client.post("/v1/completions", {**body, "temperature": 1.0, "ignore_eos": True})
    assert [each["index"] for each in done["choices"]] == [0, 1, 2, 3]
    assert (done["usage"]["prompt_tokens"], done["usage"]["completion_tokens"]) == (4, 8)


def test_a_streamed_completion(client: ContractClient) -> None:
    body = {
        "model": "demo", "prompt": tokens(3, 3 * BLOCK_SIZE + 1), "max_tokens": 3, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    *chunks, done = events(client, "/v1/completions", body)
    assert done == "[DONE]"
    assert [each["choices"][0]["finish_reason"] for each in chunks] == [None, None, "length"]
    assert len({each["id"] for each in chunks}) == 1
    assert {each["object"] for each in chunks} == {"text_completion"}
    assert all("usage" not in each or each["usage"] is None for each in chunks)
    *_, last, done = events(
        client, "/v1/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 3 * BLOCK_SIZE


def test_a_streamed_chat(client: ContractClient) -> None:
    body = chat("hello", max_tokens=2, stream=True, ignore_eos=True)
    first, *chunks, done = events(client, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(each["choices"][0]["delta"]) == {"content"} for each in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


BAD = [
    ("/v1/completions", {"model": "nope", "prompt": [301]}, 404, "NotFoundError", "model"),
    ("/v1/chat/completions", chat("x") | {"model": "nope"}, 404, "NotFoundError", "model"),
    ("/tokenize", {"model": "nope", "prompt": "x"}, 404, "NotFoundError", "model"),
    (
        "/v1/completions",
        {"model": "demo", "prompt": tokens(1, MAX_MODEL_LEN + 1)},
        400, "BadRequestError", "input_tokens",
    ),
    (
        "/v1/completions",
        {"model": "demo", "prompt": tokens(1, MAX_MODEL_LEN)},
        400, "BadRequestError", "max_tokens",
    ),
    (
        "/v1/completions",
        {"model": "demo", "prompt": [301], "max_tokens": -1},
        400, "BadRequestError", "max_tokens",
    ),
    ("/v1/completions", {"model": "demo", "prompt": []}, 400, "BadRequestError", None),
    (
        "/v1/completions",
        {"model": "demo", "prompt": [301], "cache_salt": ""},
        400, "BadRequestError", "cache_salt",
    ),
    ("/v1/chat/completions", {"model": "demo"}, 400, "Bad Request", "body.messages"),
    (
        "/v1/chat/completions",
        {"model": "demo", "messages": "x"},
        400, "Bad Request", "body.messages",
    ),
    (
        "/v1/completions",
        {"model": "demo", "prompt": "x", "max_tokens": "z"},
        400, "Bad Request", "body.max_tokens",
    ),
    (
        "/v1/load_lora_adapter",
        {"lora_name": "y", "lora_path": "/nonexistent"},
        404, "NotFoundError", None,
    ),
    ("/v1/unload_lora_adapter", {"lora_name": "y"}, 404, "NotFoundError", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "kind", "param"), BAD)
def test_what_is_refused(
    client: ContractClient,
    path: str,
    body: dict[str, Any],
    status: int,
    kind: str,
    param: str | None,
) -> None:
    answer = client.raw("POST", path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]


@pytest.mark.parametrize(
    ("content", "kind"), [(b"{nope", "application/json"), (b"{}", "text/plain")]
)
def test_what_is_no_request(client: ContractClient, content: bytes, kind: str) -> None:
    answer = client.raw("POST", "/v1/completions", content=content, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "Bad Request"


def test_nested_extra_arguments_are_refused(client: ContractClient) -> None:
    body = {"model": "demo", "prompt": [301], "vllm_xargs": {"a": {"b": 1}}}
    assert client.raw("POST", "/v1/completions", json=body).status_code == 400


def test_an_adapter_comes_and_goes(client: ContractClient, subject: Subject) -> None:
    wanted = {"lora_name": "z", "lora_path": str(subject.other_adapter)}
    client.post_text("/v1/load_lora_adapter", wanted)
    assert [each["id"] for each in client.get("/v1/models")["data"]] == ["demo", ADAPTER, "z"]
    again = client.raw("POST", "/v1/load_lora_adapter", json=wanted)
    assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
    client.post_text("/v1/load_lora_adapter", {**wanted, "load_inplace": True})
    assert client.complete([301], model="z")["model"] == "z"
    client.post_text("/v1/unload_lora_adapter", {"lora_name": "z"})
    gone = client.raw("POST", "/v1/completions", json={"model": "z", "prompt": [301]})
    assert gone.status_code == 404


def test_a_client_that_hangs_up_ends_its_request(client: ContractClient, subject: Subject) -> None:
    body = {"model": "demo", "prompt": tokens(9, 400), "max_tokens": 3000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{subject.engine.url}/v1/completions", json=body, timeout=0.5)
    running = 'vllm:num_requests_running{engine="0",model_name="demo"}'
    client.eventually(lambda: client.metrics()[running] == 0)
