"""What a chat completion request declares."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.request import UndeclaredError
from promptprefix.shapes.chat import CHAT

from .json_values import JSON, OBJECTS, TEXT

USER = {"role": "user", "content": "Hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    """Return a body whose first message has ``content``."""
    return {"model": "m", "messages": [{"role": role, "content": content}, USER]}


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (None, "malformed"),
        ([], "malformed"),
        ("text", "malformed"),
        ({}, "malformed"),
        ({"messages": [USER]}, "malformed"),
        ({"model": 1, "messages": [USER]}, "malformed"),
        ({"model": "m"}, "malformed"),
        ({"model": "m", "messages": []}, "malformed"),
        ({"model": "m", "messages": "Hello"}, "malformed"),
        ({"model": "m", "messages": ["Hello"]}, "malformed"),
        (system(1), "malformed"),
        (system({"type": "text", "text": "x"}), "malformed"),
        (system([IMAGE]), "not-text"),
        (system(["a", IMAGE]), "not-text"),
        (system([1]), "not-text"),
        (system([{"type": "text"}]), "not-text"),
        ({**system("x"), "tools": {}}, "malformed"),
        ({**system("x"), "tools": "[]"}, "malformed"),
        ({**system("x"), "chat_template_kwargs": [1]}, "malformed"),
        ({**system("x"), "chat_template": "{{ messages }}"}, "own-template"),
        ({**system("x"), "documents": []}, "own-template"),
    ],
)
def test_undeclared(body: Any, cause: str) -> None:
    with pytest.raises(UndeclaredError) as caught:
        CHAT.immutable_part(body)
    assert caught.value.cause == cause


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (system("x"), "x"),
        (system("x", "developer"), "x"),
        (system(""), ""),
        (system(None), ""),
        (system([]), ""),
        (system(["a", {"type": "text", "text": "b"}]), "a\nb"),
        (system("x", "user"), ""),
        (system([IMAGE], "user"), ""),
        (system("x", "assistant"), ""),
    ],
)
def test_system_text(body: Any, expected: str) -> None:
    assert CHAT.immutable_part(body).system == expected


def test_no_canonical_form_is_an_error_of_its_own() -> None:
    part = CHAT.immutable_part({**system("x"), "chat_template_kwargs": {"a": 2**53}})
    with pytest.raises(CanonicalError):
        _ = part.fingerprint


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable())


@st.composite
def tools(draw: st.DrawFn) -> list[Any]:
    """Return tools as `Payload` accepts them."""
    return [
        {**draw(OBJECTS), "type": "function", "function": {**draw(OBJECTS), "name": draw(NAMES)}}
        for _ in range(draw(st.integers(0, 3)))
    ]


@settings(max_examples=40)
@given(TEXT, TEXT, tools(), OBJECTS)
def test_a_request_with_the_declared_text_has_its_fingerprint(
    instructions: str, specs: str, tool_list: list[Any], options: Any
) -> None:
    payload = Payload(
        systemInstructions=instructions,
        defaultModeSpecs=specs,
        toolDefinitions=json.dumps(tool_list, indent=1),
        chatTemplateOptions=json.dumps(options),
    )
    body = {
        **system(f"{instructions}\n\n{specs}" if specs else instructions),
        "tools": tool_list,
        "chat_template_kwargs": options,
        "temperature": 0.3,
    }
    assert CHAT.immutable_part(body).fingerprint == payload_fingerprint("m", payload)


KEYS = ("model", "messages", "tools", "tool_choice", "chat_template_kwargs", "chat_template")


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(KEYS), JSON) | JSON)
def test_any_body_is_declared_or_says_why_not(body: Any) -> None:
    try:
        part = CHAT.immutable_part(body)
    except UndeclaredError as error:
        cause = error.cause
    else:
        cause = ""
        assert part.model == body["model"]
    assert cause in ("", "malformed", "not-text", "own-template")
