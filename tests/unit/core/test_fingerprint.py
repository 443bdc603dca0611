"""Fingerprint: golden vectors, and what changes it and what doesn't."""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import JsonValue, canonical_bytes, parse_json
from promptprefix.fingerprint import fingerprint, payload_fingerprint
from promptprefix.payload import Payload, PayloadError
from promptprefix.shapes import SHAPES
from promptprefix.shapes.chat import CHAT

from .json_values import JSON, OBJECTS, TEXT, TOOLS

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "golden/fingerprints.json").read_text()
)

FEW = settings(max_examples=40)
"""Values are large: a few of them say as much, in a tenth of the time."""


def vectors(group: str) -> list[Any]:
    """Return one group of golden vectors as test parameters."""
    return [pytest.param(vector, id=vector["name"]) for vector in GOLDEN[group]]


def test_example_of_the_contract() -> None:
    assert fingerprint("m", "You are a bot.", [], {}) == (
        "pp1:sha256:6a5180bb0f2b217d2da0165949710376e3c8d6cee12889780807c4329dfc7526"
    )


@pytest.mark.parametrize("vector", vectors("values"))
def test_golden_values(vector: dict[str, str]) -> None:
    digest = hashlib.sha256(vector["canonical"].encode()).hexdigest()
    tools, options = parse_json(vector["tools"]), parse_json(vector["options"])
    assert isinstance(tools, list)
    assert isinstance(options, dict)
    assert vector["fingerprint"] == f"pp1:sha256:{digest}"
    assert fingerprint(vector["model"], vector["system"], tools, options) == vector["fingerprint"]


@pytest.mark.parametrize("vector", vectors("payloads"))
def test_golden_payloads(vector: dict[str, Any]) -> None:
    payload = Payload(**vector["payload"])
    assert payload_fingerprint(vector["model"], payload) == vector["fingerprint"]


@pytest.mark.parametrize("vector", vectors("requests"))
def test_golden_requests(vector: dict[str, str]) -> None:
    shape = SHAPES[vector.get("path", CHAT.path)]
    part = shape.immutable_part(parse_json(vector["body"]))
    assert part.fingerprint == vector["fingerprint"]


def shuffled(value: JsonValue, order: random.Random) -> JsonValue:
    """Return the same value with the keys of its objects in another order."""
    if isinstance(value, Mapping):
        items = [(key, shuffled(item, order)) for key, item in value.items()]
        order.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


def spelled(value: JsonValue, form: Any, line_end: str) -> JsonValue:
    """Return the same value with all strings in another Unicode form and line end."""
    if isinstance(value, str):
        # A line end that was one character must not become half of another's pair.
        lines = value.replace("\r\n", "\n").replace("\r", "\n")
        return unicodedata.normalize(form, lines).replace("\n", line_end)
    if isinstance(value, Mapping):
        return {
            str(spelled(k, form, line_end)): spelled(v, form, line_end) for k, v in value.items()
        }
    if isinstance(value, list):
        return [spelled(item, form, line_end) for item in value]
    return value


@FEW
@given(TEXT, TEXT, TOOLS, OBJECTS, st.randoms(use_true_random=False))
def test_key_order_never_counts(
    model: str, system: str, tools: Any, options: Any, order: random.Random
) -> None:
    other = fingerprint(model, system, shuffled(tools, order), shuffled(options, order))  # type: ignore[arg-type]
    assert other == fingerprint(model, system, tools, options)


@FEW
@given(TEXT, TOOLS, OBJECTS, st.sampled_from(["NFC", "NFD"]), st.sampled_from(["\n", "\r\n", "\r"]))
def test_unicode_form_and_line_ends_never_count(
    system: str, tools: Any, options: Any, form: str, line_end: str
) -> None:
    def other(value: Any) -> Any:
        return spelled(value, form, line_end)

    assert fingerprint("m", other(system), other(tools), other(options)) == fingerprint(
        "m", system, tools, options
    )


@FEW
@given(TEXT, TOOLS, OBJECTS, st.booleans(), st.sampled_from([None, 2]))
def test_serialising_again_never_counts(
    system: str, tools: Any, options: Any, escape: bool, indent: int | None
) -> None:
    def other(value: Any) -> Any:
        return parse_json(json.dumps(value, ensure_ascii=escape, indent=indent))

    assert fingerprint("m", other(system), other(tools), other(options)) == fingerprint(
        "m", system, tools, options
    )


CHANGES = ("model", "system", "tools", "options")


@FEW
@given(TEXT, TEXT, TOOLS, OBJECTS, JSON, st.sampled_from(CHANGES))
def test_any_change_counts(
    model: str, system: str, tools: Any, options: Any, news: JsonValue, changed: str
) -> None:
    value: dict[str, Any] = {"model": model, "system": system, "tools": tools, "options": options}
    if changed in ("model", "system"):
        altered = {**value, changed: value[changed] + "x"}
    elif changed == "tools":
        altered = {**value, "tools": [*tools, news]}
    else:
        altered = {**value, "options": {**options, "a key that was not there": news}}
    assert fingerprint(**altered) != fingerprint(**value)


@FEW
@given(TOOLS)
def test_order_of_tools_counts(tools: Any) -> None:
    turned = tools[::-1]
    assert (fingerprint("m", "", turned, {}) == fingerprint("m", "", tools, {})) == (
        canonical_bytes(turned) == canonical_bytes(tools)
    )


TOOL = '{"type": "function", "function": {"name": "f", "limit": %s}}'


@pytest.mark.parametrize(
    ("payload", "model", "field", "reason"),
    [
        ({"systemInstructions": "\ud800"}, "m", "systemInstructions", "InvalidContent"),
        ({"systemInstructions": "x"}, "\ud800", "model", "InvalidSpec"),
        ({"toolDefinitions": f"[{TOOL % 2**53}]"}, "m", "toolDefinitions", "InvalidTools"),
        ({"toolDefinitions": f"[{TOOL % '1e999'}]"}, "m", "toolDefinitions", "InvalidTools"),
        ({"chatTemplateOptions": '{"a": 1e20}'}, "m", "chatTemplateOptions", "InvalidContent"),
        ({"chatTemplateOptions": "[]"}, "m", "chatTemplateOptions", "InvalidContent"),
    ],
)
def test_errors_name_the_field(
    payload: dict[str, str], model: str, field: str, reason: str
) -> None:
    with pytest.raises(PayloadError, match=f"^{field}: ") as caught:
        payload_fingerprint(model, Payload(**payload))
    assert (caught.value.field, caught.value.reason) == (field, reason)
