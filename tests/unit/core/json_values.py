"""Strategies for JSON values that have a canonical form."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

from promptprefix.canonical import MAX_EXACT_INTEGER, JsonValue

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["é", "e\u0301", "a\r\nb", "a\rb", "\u1112\u1161\u11ab", "\u212b", "🙂", "ﬁ", "\u05d3\u05bc"]
)
INTEGERS = st.integers(-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER)
FLOATS = st.floats(-1e15, 1e15, allow_nan=False) | st.sampled_from([1e21, -1e300, 5e-324, 0.1, 1.0])


def normal(key: str) -> str:
    """Return the canonical form of ``key`` by the words of the contract."""
    return unicodedata.normalize("NFC", key).replace("\r\n", "\n").replace("\r", "\n")


def _objects(values: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    pairs = st.tuples(TEXT, values)
    return st.lists(pairs, max_size=3, unique_by=lambda pair: normal(pair[0])).map(dict)


JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | _objects(inner),
    max_leaves=6,
)
OBJECTS = _objects(JSON)
TOOLS = st.lists(OBJECTS, max_size=2)
