"""What is read of a body, and that the memo's key never joins what differs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import CanonicalError, parse_json
from promptprefix.request import UndeclaredError
from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.request_head import (
    DeclaringHead,
    DeclaringReader,
    MalformedError,
    guess_model,
    read_head,
)

from .samples import MODEL, PAYLOAD, SCHEMA, chat, message, prefix, response

read_chat = DeclaringReader(CHAT).read
read_message = DeclaringReader(MESSAGES).read
read_response = DeclaringReader(RESPONSES).read


MEMO = FingerprintMemo(10_000)
"""One for all: what it told of one body must not be told of another."""


def declared(head: DeclaringHead) -> str:
    return MEMO.read(head)[0].fingerprint


def test_the_fingerprint_is_the_declared_one() -> None:
    expected = prefix().fingerprint
    assert declared(read_chat(chat())) == expected
    assert declared(read_message(message())) == expected
    assert declared(read_response(response())) == expected


def test_the_key_ignores_what_follows_the_first_message() -> None:
    assert read_chat(chat("a", temperature=0.1)).keys == read_chat(chat("b")).keys
    assert read_message(message("a", temperature=0.1)).keys == read_message(message("b")).keys
    turn = {"role": "user", "content": "a"}
    assert read_response(response("a")).keys == read_response(response("b")).keys
    assert read_response(response([turn, turn])).keys == read_response(response([turn])).keys


def test_the_key_ignores_a_leading_user_turn() -> None:
    def key(user: str) -> tuple[bytes, bytes]:
        return read_chat(chat(messages=[{"role": "user", "content": user}])).keys

    assert key("a") == key("b")


@pytest.mark.parametrize(
    "changes",
    [
        {"echo": False},
        {"documents": None},
        {"kv_transfer_params": None},
        {"kv_transfer_params": {"remote_port": 1}},
        {"kv_transfer_params": {"prompt_token_ids": None}},
    ],
)
def test_the_key_ignores_what_is_not_set(changes: dict[str, Any]) -> None:
    assert read_chat(chat(**changes)).keys == read_chat(chat()).keys


def test_the_key_ignores_what_a_marker_says() -> None:
    def key(**fields: str | None) -> tuple[bytes, bytes]:
        return read_response(response(**fields)).keys

    assert key(previous_response_id="a") == key(previous_response_id="b") != key()
    assert key(previous_response_id=None) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "n"},
        {"tools": []},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {"a": 1}},
        {"chat_template": "x"},
        {"documents": [{}]},
        {"messages": [{"role": "system", "content": "other"}]},
        {"echo": True},
        {"prompt_logprobs": 0},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
    ],
)
def test_the_key_covers_what_decides(changes: dict[str, Any]) -> None:
    assert read_chat(chat(**changes)).keys != read_chat(chat()).keys


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "n"},
        {"system": "other"},
        {"tools": []},
        {"tool_choice": {"type": "none"}},
        {"messages": [{"role": "system", "content": "x"}]},
        {"chat_template_kwargs": {"a": 1}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low"}},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
    ],
)
def test_the_key_of_a_message_covers_what_decides(changes: dict[str, Any]) -> None:
    assert read_message(message(**changes)).keys != read_message(message()).keys


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "n"},
        {"instructions": None},
        {"input": [{"role": "system", "content": "x"}]},
        {"tools": []},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {"a": 1}},
        {"reasoning": {"effort": "low"}},
        {"truncation": "auto"},
        {"prompt": {"id": "p"}},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
    ],
)
def test_the_key_of_a_response_covers_what_decides(changes: dict[str, Any]) -> None:
    assert read_response(response(**changes)).keys != read_response(response()).keys


def test_parts_can_not_run_into_each_other() -> None:
    one = read_chat(b'{"model":"m","messages":[{}],"tools":[],"documents":[]}')
    two = read_chat(b'{"model":"m","messages":[{}],"tools":[]}')
    assert one.keys != two.keys


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b'{"model":"m"}',
        b'{"messages":[{}]}',
        b'{"model":1,"messages":[{}]}',
        b'{"model":"m","messages":{}}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":"x"}',
        b"[" * 100_000,
        b'{"model":"m","messages":[{}],"x":' + b"[" * 100_000,
        chat().decode().encode("utf-16"),
    ],
)
def test_what_is_no_chat_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        read_chat(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","model":"m","messages":[{}]}',
        b'{"model":"m","messages":[{}],"tool\\u0073":[]}',
        b'{"model":"m","messages":[{}],"cache_salt":"a","cache_salt":"b"}',
        b'{"model":"m","messages":[{}],"cache_\\u0073alt":"a"}',
        b'{"model":"m","messages":[{}],"x":{"tools":1},"tools":[]}',
    ],
)
def test_doubtful_names_are_noticed(body: bytes) -> None:
    assert read_chat(body).ambiguous


def test_ordinary_escapes_are_not_doubtful() -> None:
    assert not read_chat(chat("\u00e9 \u4f60 \x1b tools")).ambiguous


def test_the_model_of_any_request() -> None:
    assert read_head(b'{"prompt":"x","model":"a/b"}').model == "a/b"
    with pytest.raises(MalformedError):
        read_head(b'{"prompt":"x"}')


@pytest.mark.parametrize(
    ("value", "salt"),
    [("s1", "s1"), ("s\u00e9", "s\u00e9"), (None, ""), ("", None), (7, None), (["s"], None)],
)
def test_the_salt_of_a_request(value: object, salt: str | None) -> None:
    assert read_chat(chat(cache_salt=value)).salt == salt
    assert read_head(json.dumps({"model": "m", "cache_salt": value}).encode()).salt == salt


def test_without_the_field_there_is_no_salt() -> None:
    assert read_chat(chat()).salt == read_head(chat()).salt == ""


def test_the_salt_is_neither_in_the_key_nor_shown() -> None:
    salted = read_chat(chat(cache_salt="a-secret"))
    assert salted.keys == read_chat(chat()).keys
    assert "a-secret" not in repr(salted)


@pytest.mark.parametrize(
    ("start", "model"),
    [
        (b'{"model": "a/b", "messages": [{"ro', "a/b"),
        (b'{"messages": [{"ro', None),
        (b'{"model": "\xff"', "\ufffd"),
        (b"", None),
    ],
)
def test_a_guess_from_the_first_part(start: bytes, model: str | None) -> None:
    assert guess_model(start) == model


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
turns = st.lists(
    json_values
    | st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"])},
        optional={"content": json_values, "name": json_values, "tools": json_values},
    ),
    max_size=2,
)
fields: dict[str, st.SearchStrategy[Any]] = {
    "tools": json_values | st.just([{"type": "function", "name": "f", "input_schema": SCHEMA}]),
    "tool_choice": st.sampled_from(["none", {"type": "none"}]) | json_values,
    "chat_template_kwargs": json_values,
    "documents": st.none() | json_values,
    "echo": st.booleans() | json_values,
    "prompt_logprobs": st.none() | st.integers(0, 1),
    "system": json_values | st.lists(st.fixed_dictionaries({"type": st.just("text")})),
    "thinking": json_values | st.just({"type": "disabled"}),
    "output_config": json_values | st.just({"effort": "low"}),
    "instructions": st.none() | json_values,
    "reasoning": json_values | st.just({"effort": "low"}),
    "truncation": st.none() | json_values,
    "previous_response_id": st.none() | json_values,
    "kv_transfer_params": st.none()
    | st.dictionaries(st.sampled_from(["prompt_token_ids", "a"]), json_values, max_size=2),
}
bodies = st.fixed_dictionaries(
    {
        "model": st.just(MODEL) | json_values,
        "messages": turns,
        "input": turns | st.text(),
    },
    optional=fields,
)


@pytest.mark.parametrize("shape", [CHAT, MESSAGES, RESPONSES], ids=lambda shape: shape.path)
@settings(max_examples=60, deadline=None)
@given(body=bodies)
def test_slices_mean_what_the_whole_body_means(shape: Shape, body: dict[str, Any]) -> None:
    """Reading only the parts gives the fingerprint of the strict reading of everything."""
    raw = json.dumps(body).encode()
    try:
        expected = shape.immutable_part(parse_json(raw)).fingerprint
    except (CanonicalError, UndeclaredError):
        expected = ""
    try:
        found = declared(DeclaringReader(shape).read(raw))
    except MalformedError:
        found = ""
    assert found == expected


def test_the_declared_text_is_matched_in_another_spelling() -> None:
    text = PAYLOAD.system.replace("\n", "\r\n")
    messages = [{"role": "developer", "content": [{"type": "text", "text": text}]}]
    assert declared(read_chat(chat(messages=messages))) == prefix().fingerprint
