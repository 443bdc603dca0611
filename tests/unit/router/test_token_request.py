"""What engines are asked for tokens, and what they are not."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.precise.token_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Fallback,
    FallbackError,
    TokenRequest,
    read_tokens,
    token_request,
)

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def asked(path: str = CHAT_PATH, **body: Any) -> Any:
    """Return what is asked for a body, read."""
    return json.loads(token_request(path, json.dumps(body).encode()).body)


def refused(path: str, body: bytes) -> Fallback:
    """Return why nothing is asked."""
    with pytest.raises(FallbackError) as error:
        token_request(path, body)
    return error.value.reason


def test_a_chat_is_asked_as_it_is_spelled() -> None:
    body = (
        b'{"stream": true, "model":"m" , "temperature":1, "messages" : [ {"role":"user",'
        b'"content":"\\u00e9 \\ud83d\\ude00"} ],"cache_salt":"x","tools":[ {"b":1.0,"a":2} ]}'
    )
    assert token_request(CHAT_PATH, body).body == (
        b'{"model":"m","messages":[ {"role":"user","content":"\\u00e9 \\ud83d\\ude00"} ],'
        b'"tools":[ {"b":1.0,"a":2} ]}'
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"tools": None, "tool_choice": "none"},
        {"chat_template_kwargs": {"a": [1]}},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_special_tokens": True},
    ],
)
def test_what_tokenize_reads_as_the_api_does_is_passed_on(more: dict[str, Any]) -> None:
    told = {name: value for name, value in more.items() if name != "tool_choice"}
    assert asked(**CHAT, **more) == {**CHAT, **told}


@pytest.mark.parametrize(
    ("effort", "options", "told"),
    [
        ("low", None, {"reasoning_effort": "low", "enable_thinking": True}),
        ("none", {}, {"reasoning_effort": "none", "enable_thinking": False}),
        ("high", {"enable_thinking": False, "a": 1}, {"enable_thinking": False, "a": 1}),
    ],
)
def test_an_effort_is_two_options(
    effort: str, options: dict[str, Any] | None, told: dict[str, Any]
) -> None:
    body = asked(**CHAT, reasoning_effort=effort, chat_template_kwargs=options)
    assert body["chat_template_kwargs"] == {"reasoning_effort": effort, **told}


def test_parts_of_text_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert asked(model="m", messages=messages)["messages"] == messages


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        {"messages": [{"content": [{"type": "text"}, {"type": "input_audio"}]}]},
        {"messages": "hi"},
        {"tools": TOOLS, "tool_choice": "none"},
        {"chat_template": "x"},
        {"documents": []},
        {"truncate_prompt_tokens": 5},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"mm_processor_kwargs": {}},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
        {"reasoning_effort": 5},
    ],
)
def test_what_tokenize_would_print_otherwise_is_not_asked(more: dict[str, Any]) -> None:
    body = json.dumps({**CHAT, **more}).encode()
    assert refused(CHAT_PATH, body) is Fallback.UNSUPPORTED


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/embeddings"])
def test_other_apis_have_no_tokenize(path: str) -> None:
    assert refused(path, b"{}") is Fallback.API


def test_a_completion_is_asked_for() -> None:
    body = {"model": "m", "prompt": "a b", "max_tokens": 5}
    assert asked(COMPLETIONS_PATH, **body) == {"model": "m", "prompt": "a b"}


def test_tokens_of_a_completion_need_not_be_asked_for() -> None:
    body = json.dumps({"model": "m", "prompt": [1, 2, 3]}).encode()
    assert token_request(COMPLETIONS_PATH, body) == TokenRequest(tokens=[1, 2, 3])


@pytest.mark.parametrize("prompt", [["a"], ["a", "b"], [[1], [2]], None, 5, {}, [1.5]])
def test_several_prompts_and_none_are_not_asked(prompt: object) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    assert refused(COMPLETIONS_PATH, body) is Fallback.UNSUPPORTED


@given(body=st.binary(max_size=60) | st.just(b"[" * 5000))
def test_any_body_is_asked_or_refused(body: bytes) -> None:
    for path in (CHAT_PATH, COMPLETIONS_PATH):
        with suppress(FallbackError):
            assert token_request(path, body)


def test_the_answer_has_the_tokens() -> None:
    assert read_tokens(b'{"count":2,"max_model_len":9,"tokens":[5,6],"token_strs":null}') == [5, 6]


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"tokens":["a"]}', b'{"tokens":5}'])
def test_another_answer_is_invalid(answer: bytes) -> None:
    with pytest.raises(FallbackError) as error:
        read_tokens(answer)
    assert error.value.reason is Fallback.INVALID
