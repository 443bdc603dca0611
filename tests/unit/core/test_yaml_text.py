"""YAML of plain data reads back as what it was."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.yaml_text import Plain, yaml_text

# YAML readers take a few control characters and line separators only as escapes, which JSON lacks.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co", "Zl", "Zp"]), max_size=9)
WORDS = st.sampled_from(
    [
        "yes",
        "No",
        "on",
        "null",
        "~",
        "1.0",
        "0x1",
        "a: b",
        "- a",
        "a #b",
        "2026-01-01",
        "=",
        "",
        " a",
    ]
)
VALUES: st.SearchStrategy[Plain] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(TEXT | WORDS, VALUES, min_size=1, max_size=3))
def test_reads_back(value: dict[str, Plain]) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


def test_style() -> None:
    value: dict[str, Plain] = {"a": {"b": [1, {"c": "plain words"}, []]}, "d": "no", "e": {}}
    assert yaml_text(value) == ('a:\n  b:\n  - 1\n  - c: plain words\n  - []\nd: "no"\ne: {}\n')


@pytest.mark.parametrize("empty", [[], {}, "", None, False, 0])
def test_empty_values_stay_what_they_are(empty: Plain) -> None:
    assert yaml.safe_load(yaml_text({"a": empty})) == {"a": empty}
