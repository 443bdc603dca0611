"""What requests of each API declare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.request_fields import FIELDS, Fields
from promptprefix.request import Cause, ImmutablePart, UndeclaredError
from promptprefix.shapes import SHAPES
from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape

USER = {"role": "user", "content": "Hello"}
HEADER = "x-anthropic-billing-header: cch=1;"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
SMALLEST: Mapping[str, Mapping[str, Any]] = {
    CHAT.path: {"model": "m", "messages": [USER]},
    MESSAGES.path: {"model": "m", "messages": [USER]},
    RESPONSES.path: {"model": "m", "input": "Hello"},
}


def part_of(shape: Shape, **fields: Any) -> ImmutablePart:
    return shape.immutable_part({**SMALLEST[shape.path], **fields})


def text(value: Any, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": value, **more}


EVERY = [pytest.param(fields, id=fields.model) for fields in FIELDS]
FREE = [
    pytest.param(fields.shape, name, value, id=f"{fields.model}-{name}")
    for fields in FIELDS
    for name, value in fields.free.items()
]
UNDECLARED = [
    pytest.param(fields.shape, name, value, cause, id=f"{fields.model}-{name}")
    for fields in FIELDS
    for name, (value, cause) in fields.undeclared.items()
]


@pytest.mark.parametrize(("shape", "name", "value"), FREE)
def test_fields_that_change_nothing(shape: Shape, name: str, value: Any) -> None:
    assert part_of(shape, **{name: value}) == part_of(shape)


@pytest.mark.parametrize(("shape", "name", "value", "cause"), UNDECLARED)
def test_fields_that_make_undeclared(shape: Shape, name: str, value: Any, cause: Cause) -> None:
    with pytest.raises(UndeclaredError) as caught:
        part_of(shape, **{name: value})
    assert caught.value.cause == cause
    assert caught.value.field.startswith(name)
    assert part_of(shape, **{name: None}) == part_of(shape)


@pytest.mark.parametrize("fields", EVERY)
def test_a_shape_names_the_fields_that_decide(fields: Fields) -> None:
    shape = fields.shape
    named = {shape.conversation, *shape.values, *shape.markers}
    aside = {"model", "cache_salt", "kv_transfer_params", "conversation"}
    assert named | aside == fields.identity | fields.undeclared.keys() | {"conversation"}


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        (CHAT, {"echo": False, "add_special_tokens": False}),
        (CHAT, {"kv_transfer_params": {"remote_host": "x"}}),
        (CHAT, {"kv_transfer_params": {"prompt_token_ids": None}}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (MESSAGES, {"thinking": {"type": "adaptive"}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}),
        (RESPONSES, {"reasoning": {"summary": "auto"}}),
        (RESPONSES, {"truncation": "disabled"}),
    ],
)
def test_harmless_values_of_fields_that_matter(shape: Shape, fields: dict[str, Any]) -> None:
    assert part_of(shape, **fields) == part_of(shape)


LOW = {"reasoning_effort": "low", "enable_thinking": True}
EFFORTS: list[tuple[Shape, dict[str, Any]]] = [
    (CHAT, {"reasoning_effort": "low"}),
    (MESSAGES, {"output_config": {"effort": "low"}}),
    (RESPONSES, {"reasoning": {"effort": "low", "summary": "auto"}}),
]


@pytest.mark.parametrize(("shape", "fields"), EFFORTS)
def test_an_effort_is_an_argument_of_the_template(shape: Shape, fields: dict[str, Any]) -> None:
    assert part_of(shape, **fields).options == LOW
    own = {"enable_thinking": False, "reasoning_effort": "high", "a": 1}
    both = part_of(shape, **fields, chat_template_kwargs=own)
    assert both.options == {**own, "reasoning_effort": "low"}
    none = json.loads(json.dumps(fields).replace("low", "none"))
    assert part_of(shape, **none).options == {"reasoning_effort": "none", "enable_thinking": False}


@pytest.mark.parametrize(
    ("shape", "fields", "system"),
    [
        (MESSAGES, {"system": "x"}, "x"),
        (MESSAGES, {"system": ""}, ""),
        (MESSAGES, {"system": [text("a\n"), text("b", cache_control={}), text("")]}, "a\nb"),
        (MESSAGES, {"system": [text(HEADER), text("a"), text(None)]}, "a"),
        (MESSAGES, {"system": f"{HEADER}\na"}, f"{HEADER}\na"),
        (RESPONSES, {"instructions": "x"}, "x"),
        (RESPONSES, {"instructions": "", "input": [USER]}, ""),
        (RESPONSES, {"input": [{"role": "system", "content": "x"}, USER]}, "x"),
        (RESPONSES, {"input": [{"role": "developer", "type": "message", "content": "x"}]}, "x"),
        (
            RESPONSES,
            {"input": [{"role": "system", "content": [text("a", "input_text"), "b"]}]},
            "a\nb",
        ),
        (RESPONSES, {"instructions": "x", "input": [{"role": "system", "content": "y"}]}, "x"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f"}]}, ""),
    ],
)
def test_system_text(shape: Shape, fields: dict[str, Any], system: str) -> None:
    assert part_of(shape, **fields).system == system


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": fields}]


@pytest.mark.parametrize(
    ("shape", "tool", "chat"),
    [
        (MESSAGES, {"name": "f", "input_schema": SCHEMA}, {"name": "f", "parameters": SCHEMA}),
        (
            MESSAGES,
            {"name": "f", "input_schema": SCHEMA, "type": "custom", "cache_control": {"a": 1}},
            {"name": "f", "parameters": SCHEMA},
        ),
        (
            MESSAGES,
            {"name": "f", "input_schema": {}, "description": None, "strict": True, "new": 1},
            {"name": "f", "parameters": {"type": "object"}, "strict": True, "new": 1},
        ),
        (
            RESPONSES,
            {"type": "function", "name": "f", "parameters": SCHEMA, "strict": None},
            {"name": "f", "parameters": SCHEMA},
        ),
        (
            RESPONSES,
            {"type": "function", "name": "f", "strict": False, "new": 1},
            {"name": "f", "strict": False, "new": 1},
        ),
    ],
)
def test_tools_in_the_shape_of_a_chat(
    shape: Shape, tool: dict[str, Any], chat: dict[str, Any]
) -> None:
    assert part_of(shape, tools=[tool]).tools == function(**chat)


NO_TOOLS: list[tuple[Shape, dict[str, Any]]] = [
    (CHAT, {"tools": function(name="f"), "tool_choice": "none"}),
    (CHAT, {"tools": None}),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}}),
    (MESSAGES, {"tools": None, "tool_choice": None}),
    (RESPONSES, {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"}),
    (RESPONSES, {"tools": []}),
]


@pytest.mark.parametrize(("shape", "fields"), NO_TOOLS)
def test_no_tools(shape: Shape, fields: dict[str, Any]) -> None:
    assert part_of(shape, **fields).tools == []


NAMED = {"role": "system", "content": "x", "name": "n"}


@pytest.mark.parametrize(
    ("shape", "fields", "cause"),
    [
        (CHAT, {"messages": [NAMED, USER]}, Cause.MESSAGE_FIELD),
        (CHAT, {"messages": [{"role": "system", "task": "t"}]}, Cause.MESSAGE_FIELD),
        (CHAT, {"messages": [{"role": "developer", "tools": []}]}, Cause.MESSAGE_FIELD),
        (MESSAGES, {"messages": []}, Cause.MALFORMED),
        (MESSAGES, {"messages": ["x"]}, Cause.MALFORMED),
        (MESSAGES, {"messages": [USER, {"role": "system", "content": ""}]}, Cause.INLINE_SYSTEM),
        (MESSAGES, {"system": {}}, Cause.MALFORMED),
        (MESSAGES, {"system": [{"type": "image"}]}, Cause.NOT_TEXT),
        (MESSAGES, {"system": ["x"]}, Cause.NOT_TEXT),
        (MESSAGES, {"system": [text(1)]}, Cause.NOT_TEXT),
        (MESSAGES, {"tools": {}}, Cause.MALFORMED),
        (MESSAGES, {"tools": []}, Cause.EMPTY_TOOLS),
        (MESSAGES, {"tools": ["x"]}, Cause.MALFORMED),
        (MESSAGES, {"tools": [{"type": "web_search_20250305"}]}, Cause.NOT_A_FUNCTION),
        (MESSAGES, {"tools": [{"name": "f"}]}, Cause.NOT_A_FUNCTION),
        (RESPONSES, {"input": None}, Cause.MALFORMED),
        (RESPONSES, {"input": []}, Cause.MALFORMED),
        (RESPONSES, {"input": ["x"]}, Cause.MALFORMED),
        (RESPONSES, {"instructions": ["x"]}, Cause.MALFORMED),
        (RESPONSES, {"input": [NAMED]}, Cause.MESSAGE_FIELD),
        (RESPONSES, {"input": [{"role": "system", "content": [text("x")]}]}, Cause.NOT_TEXT),
        (RESPONSES, {"input": [{"role": "system", "type": "other"}]}, Cause.NOT_TEXT),
        (RESPONSES, {"conversation": "c"}, Cause.STORED_CONTEXT),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, Cause.NOT_A_FUNCTION),
        (RESPONSES, {"tools": [{"type": "custom", "name": "f"}]}, Cause.NOT_A_FUNCTION),
        (RESPONSES, {"tools": [*function(name="f"), 1]}, Cause.NOT_A_FUNCTION),
    ],
)
def test_undeclared(shape: Shape, fields: dict[str, Any], cause: Cause) -> None:
    with pytest.raises(UndeclaredError) as caught:
        part_of(shape, **fields)
    assert caught.value.cause == cause


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.path)
@pytest.mark.parametrize("body", [None, [], "x", {}, {"model": 1}])
def test_malformed(shape: Shape, body: Any) -> None:
    with pytest.raises(UndeclaredError) as caught:
        shape.immutable_part(body)
    assert caught.value.cause == Cause.MALFORMED
