"""Canonical form: errors by cause and place, and what never changes it."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.canonical import (
    MAX_DEPTH,
    CanonicalError,
    JsonValue,
    canonical_bytes,
    canonical_text,
    canonical_value,
    parse_json,
)

from .json_values import FLOATS, JSON, TEXT, normal


def nested(depth: int) -> JsonValue:
    """Return arrays in arrays, the innermost at ``depth``."""
    value: JsonValue = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        (2**53, "", "beyond 2^53"),
        ({"a": [1, -(2**53)]}, "/a/1", "beyond 2^53"),
        ([2.0**53], "/0", "beyond 2^53"),
        ([1e20], "/0", "beyond 2^53"),
        ({"a": math.inf}, "/a", "too large"),
        ({"a": math.nan}, "/a", "too large"),
        ({"a": "\ud800"}, "/a", "lone surrogate"),
        ({"a": {"\udfff": 1}}, "/a", "lone surrogate"),
        ({"é": 1, "e\u0301": 2}, "/é", "equal after Unicode"),
        ({"x": {"a\r": 1, "a\n": 2}}, "/x/a\n", "equal after Unicode"),
        ({"a/b": {"~": 2**60}}, "/a~1b/~0", "beyond 2^53"),
        (nested(MAX_DEPTH + 1), "/0" * (MAX_DEPTH + 1), "nested deeper"),
    ],
)
def test_no_canonical_form(value: JsonValue, path: str, message: str) -> None:
    with pytest.raises(CanonicalError, match=message.replace("^", r"\^")) as caught:
        canonical_bytes(value)
    assert caught.value.path == path
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        ('{"x": {"\\u0061": 1, "a": 1}}', "'a' stands twice"),
        ("NaN", "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[1,]", "not JSON"),
        ("[01]", "not JSON"),
        ('"a\nb"', "not JSON"),
        ("\ufeff{}", "not JSON"),
        ("1" * 5000, "not JSON"),
        (b'"\xff"', "not JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 100_000, "nested deeper"),
    ],
)
def test_not_json(text: str | bytes, message: str) -> None:
    with pytest.raises(CanonicalError, match=message):
        parse_json(text)


def test_messages_stay_short() -> None:
    key = "k" * 100_000
    with pytest.raises(CanonicalError, match="stands twice") as twice:
        parse_json(f'{{"{key}": 1, "{key}": 2}}')
    with pytest.raises(CanonicalError, match="beyond") as beyond:
        canonical_bytes({key: {key: 2**53}})
    assert len(str(twice.value)) < 300
    assert len(str(beyond.value)) < 300


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), 2**53 - 1, 1e21, -1e300, 0.5, [], {}, None])
def test_limits_are_inside(value: JsonValue) -> None:
    assert parse_json(canonical_bytes(value)) == value


@given(TEXT)
def test_text_is_normal_and_stays_so(text: str) -> None:
    once = canonical_text(text)
    assert once == normal(text)
    assert canonical_text(once) == once


@given(JSON)
def test_reading_it_again_changes_nothing(value: JsonValue) -> None:
    once = canonical_bytes(value)
    again = parse_json(once)
    assert canonical_bytes(again) == once
    assert again == canonical_value(value)


@given(FLOATS)
def test_numbers_keep_their_value(number: float) -> None:
    assert float(canonical_bytes(number)) == number


UNCHECKED: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=10,
)


@given(UNCHECKED)
def test_any_value_has_a_form_or_a_clear_error(value: JsonValue) -> None:
    try:
        canonical = canonical_bytes(value)
    except CanonicalError:
        return
    assert canonical_bytes(parse_json(canonical)) == canonical


@given(st.text() | st.binary())
def test_any_text_is_json_or_a_clear_error(text: str | bytes) -> None:
    try:
        value = parse_json(text)
    except CanonicalError:
        return
    assert value == json.loads(text)


MARKS = "\u0300\u0301\u0316\u0315\u0327\u0344\u0f71\u0f72\u0f73\u0f75\u0f81\u302e\U0001d165\u05b0"
STARTERS = "\u01d8\u00e9\u1e9b\u0958\uac00\u0e33\u2026\U0001f600\ufb1d a"


@given(
    st.lists(
        st.tuples(
            st.text(STARTERS, max_size=2),
            st.text(MARKS, max_size=80),
        ),
        max_size=4,
    )
)
def test_long_runs_of_marks_are_still_nfc(parts: list[tuple[str, str]]) -> None:
    text = "".join(starter + 2 * marks for starter, marks in parts)
    assert canonical_text(text) == unicodedata.normalize("NFC", text)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "marks", ["\u0315\u0316", "\u0f73", "\u0301\u0f81", "\u20d0\u0316\U0001f600"]
)
def test_marks_in_disorder_cost_no_quadratic_time(marks: str) -> None:
    text = "a" + marks * 150_000
    assert len(canonical_text(text)) >= 150_000


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('{"a": 1, "a": 2}', 15),
        ('[{"}": "\\"}"}, {"x": {"é": 1, "é": 1}, "}": 0}]', 36),
        ('{"a": {}, "a": {}}', 17),
    ],
)
@pytest.mark.parametrize("encoding", ["", "utf-8", "utf-16-le"])
def test_a_double_key_can_be_told_without_quoting_it(text: str, end: int, encoding: str) -> None:
    assert text[end] == "}"
    with pytest.raises(CanonicalError) as caught:
        parse_json(text.encode(encoding) if encoding else text)
    assert caught.value.unquoted == (
        f"a key stands twice in the object that ends at character {end}"
    )
