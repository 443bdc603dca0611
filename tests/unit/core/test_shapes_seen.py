"""Equal fingerprints mean equal chats, whatever API a request is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import CanonicalError, canonical_bytes
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.request import UndeclaredError
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape

from .json_values import JSON, OBJECTS, TEXT

USER = {"role": "user", "content": "Hello"}
HEADER = "x-anthropic-billing-header: cch=1;"


def text(value: Any, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


NAMES = st.text(min_size=1, max_size=8).filter(str.isprintable)
FUNCTIONS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES, "parameters": OBJECTS.map(lambda schema: {"type": "object", **schema})},
        optional={"description": TEXT, "strict": st.booleans(), "new": OBJECTS},
    ),
    min_size=1,
    max_size=2,
)


@settings(max_examples=40)
@given(TEXT.filter(lambda text: not text.startswith("x-a")), FUNCTIONS, OBJECTS, st.data())
def test_the_declared_text_has_one_fingerprint_in_every_api(
    system: str, functions: list[Any], options: Any, data: st.DataObject
) -> None:
    payload = Payload(
        systemInstructions=system,
        toolDefinitions=json.dumps([{"type": "function", "function": f} for f in functions]),
        chatTemplateOptions=json.dumps(options),
    )
    cut = data.draw(st.integers(0, len(system)))
    message = {
        "model": "m",
        "system": [text(system[:cut]), text(system[cut:])],
        "messages": [USER],
        "tools": [
            {"input_schema": f["parameters"], **_without(f, "parameters")} for f in functions
        ],
        "chat_template_kwargs": options,
    }
    response = {
        "model": "m",
        "instructions": system,
        "input": "Hello",
        "tools": [{**f, "type": "function"} for f in functions],
        "chat_template_kwargs": options,
    }
    parts = MESSAGES.immutable_part(message), RESPONSES.immutable_part(response)
    assert {part.fingerprint for part in parts} == {payload_fingerprint("m", payload)}


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != name}


def seen(tool: Any) -> Any:
    """Return what a chat template sees of a chat's tool: vLLM drops the rest."""
    function = tool["function"]
    shown = {name: function.get(name) for name in ("name", "description", "parameters")}
    more = ("strict", "defer_loading")
    return shown | {name: function[name] for name in more if function.get(name) is not None}


def seen_in_messages(body: Any) -> Any:
    """Return system text and tools as vLLM hands them to the template."""
    system = body.get("system") or ""
    if not isinstance(system, str):
        texts = [block.get("text") or "" for block in system if block["type"] == "text"]
        system = "".join(t for t in texts if not t.startswith("x-anthropic-billing-header"))
    tools = body.get("tools")
    if tools is None or body.get("tool_choice") == {"type": "none"}:
        return system, None
    named = ("name", "description", "strict", "defer_loading")
    return system, [
        seen(
            {
                "function": {
                    **{name: tool.get(name) for name in named},
                    "parameters": {**tool["input_schema"]}
                    if "type" in tool["input_schema"]
                    else {**tool["input_schema"], "type": "object"},
                }
            }
        )
        for tool in tools
    ]


def seen_in_responses(body: Any) -> Any:
    """Return system text and tools as vLLM hands them to the template."""
    first = {} if isinstance(body["input"], str) else body["input"][0]
    system = body.get("instructions") or ""
    if not system and first.get("role") in ("system", "developer"):
        content = first.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(p if isinstance(p, str) else p["text"] for p in content)
        system = content
    tools = body.get("tools")
    if not tools or body.get("tool_choice") == "none":
        return system, None
    return system, [seen({"function": tool}) for tool in tools]


def seen_options(shape: Shape, body: Any) -> Any:
    """Return the arguments that vLLM hands to the template."""
    own = body.get("chat_template_kwargs") or {}
    field = body.get("reasoning" if shape is RESPONSES else "output_config")
    effort = field.get("effort") if isinstance(field, Mapping) else None
    if effort is None:
        return own
    added = {"reasoning_effort": effort}
    if "enable_thinking" not in own:
        added["enable_thinking"] = effort != "none"
    return {**own, **added}


SEEN = {MESSAGES.path: seen_in_messages, RESPONSES.path: seen_in_responses}


def tools(kind: st.SearchStrategy[Any], schema: str) -> st.SearchStrategy[Any]:
    """Return lists of an API's tools, few of them wrong."""
    optional = {
        "description": st.none() | TEXT,
        "strict": st.none() | st.booleans(),
        "defer_loading": st.none() | st.booleans(),
        "cache_control": OBJECTS,
        "new": JSON,
    }
    right = st.fixed_dictionaries({"name": NAMES, "type": kind, schema: OBJECTS}, optional=optional)
    wrong = st.just({"type": "web_search"}) | JSON
    return st.lists(right, min_size=1, max_size=2) | st.lists(right | wrong, max_size=2)


def parts(kind: str) -> st.SearchStrategy[Any]:
    """Return lists of text parts, few of them wrong."""
    right = st.builds(text, TEXT | st.sampled_from([None, HEADER]), st.just(kind))
    return st.lists(right, max_size=3) | st.lists(right | JSON, max_size=2)


ITEMS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"])},
        optional={
            "content": st.none() | TEXT | parts("input_text"),
            "name": st.none() | TEXT,
            "type": st.just("message"),
        },
    ),
    min_size=1,
    max_size=2,
)
EFFORT = st.none() | JSON | st.fixed_dictionaries({"effort": st.sampled_from([None, "none", "a"])})
OPTIONS = st.none() | OBJECTS | st.just({"enable_thinking": True})
BODIES = {
    MESSAGES.path: st.fixed_dictionaries(
        {
            "model": st.just("m"),
            "messages": st.just([USER]),
            "system": st.none() | TEXT | parts("text"),
            "tools": st.none() | tools(st.sampled_from([None, "custom"]), "input_schema"),
        },
        optional={
            "tool_choice": st.sampled_from([None, {"type": "none"}, {"type": "auto"}]),
            "chat_template_kwargs": OPTIONS,
            "thinking": st.none() | JSON,
            "output_config": EFFORT,
        },
    ),
    RESPONSES.path: st.fixed_dictionaries(
        {
            "model": st.just("m"),
            "input": TEXT | ITEMS,
            "tools": st.none() | tools(st.just("function"), "parameters"),
        },
        optional={
            "instructions": st.none() | TEXT,
            "tool_choice": st.sampled_from([None, "none", "auto"]),
            "chat_template_kwargs": OPTIONS,
            "reasoning": EFFORT,
        },
    ),
}


@pytest.mark.parametrize("shape", [MESSAGES, RESPONSES], ids=lambda shape: shape.path)
@settings(max_examples=150)
@given(data=st.data())
def test_what_is_declared_is_seen_by_the_template(shape: Shape, data: st.DataObject) -> None:
    """Equal fingerprints mean equal parts, and a part says all that a template sees."""
    body = data.draw(BODIES[shape.path])
    try:
        part = shape.immutable_part(body)
        _ = part.fingerprint
    except (UndeclaredError, CanonicalError):
        return
    system, tools = SEEN[shape.path](body)
    assert part.system == system
    assert canonical_bytes([seen(tool) for tool in part.tools]) == canonical_bytes(tools or [])
    assert (tools is None) == (part.tools == [])
    assert part.options == seen_options(shape, body)
