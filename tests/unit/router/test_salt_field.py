"""The cache salt of a body: set, replaced and removed, whatever a client wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.rewriting.json_spans import MAX_MEMBERS
from promptprefix_router.rewriting.salt_field import UnreadableError, with_salt
from promptprefix_router.traces import Traces

SALT = "the-word-of-the-router"
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "cache_salt")

CASES: list[tuple[bytes, bytes, bytes]] = [
    (b"{}", b'{"cache_salt":"%s"}', b"{}"),
    (b' {"a": 1.50} ', b' {"cache_salt":"%s","a": 1.50} ', b' {"a": 1.50} '),
    (b'{"cache_salt":"x"}', b'{"cache_salt":"%s"}', b"{}"),
    (b'{"cache_salt": null , "a": 1}', b'{"cache_salt": "%s" , "a": 1}', b'{"a": 1}'),
    (b'{ "a" : 1 , "cache_salt":["x"] }', b'{ "a" : 1 , "cache_salt":"%s" }', b'{ "a" : 1 }'),
    (
        b'{"cache_salt":"x","a":{"cache_salt":"y"},"cache_salt":"z"}',
        b'{"cache_salt":"%s","a":{"cache_salt":"y"},"cache_salt":"%s"}',
        b'{"a":{"cache_salt":"y"}}',
    ),
    (
        b'{"a":1,"cache_salt":"x","cache_salt":"y","b":NaN}',
        b'{"a":1,"cache_salt":"%s","cache_salt":"%s","b":NaN}',
        b'{"a":1,"b":NaN}',
    ),
    (
        b'{"cache\\u005fsalt":"x","cache_salt":"y"}',
        b'{"cache\\u005fsalt":"%s","cache_salt":"%s"}',
        b"{}",
    ),
    (
        b'{"%s":"x","Cache_Salt":1}' % ESCAPED.encode(),
        b'{"' + ESCAPED.encode() + b'":"%s","Cache_Salt":1}',
        b'{"Cache_Salt":1}',
    ),
]


@pytest.mark.parametrize(("body", "salted", "removed"), CASES)
def test_a_salt_is_set_or_removed_in_place(body: bytes, salted: bytes, removed: bytes) -> None:
    assert with_salt(body, SALT) == salted.replace(b"%s", SALT.encode())
    assert with_salt(body, "") == removed


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "utf-8-sig"])
def test_other_encodings_that_engines_read(encoding: str) -> None:
    body = '{"cache_salt":"x","a":"é"}'.encode(encoding)
    assert Traces.of(body).salt
    assert json.loads(with_salt(body, SALT)) == {"cache_salt": SALT, "a": "é"}
    assert json.loads(with_salt(body, "")) == {"a": "é"}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'{"a":1', b'{"a":1}x', b'{"a":1,}', b"{1:2}", b"\xff", b'{"a" 1}',
     b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
)  # fmt: skip
def test_what_is_no_object_is_told(body: bytes) -> None:
    for salt in (SALT, ""):
        with pytest.raises(UnreadableError):
            with_salt(body, salt)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(["cache_salt", "cache\\u005Fsalt", ESCAPED, "a", "messages", "b\\u0063"])
SPACE = st.sampled_from(["", " ", "\n\t", "\r\n "])


@st.composite
def raw_objects(draw: st.DrawFn) -> str:
    """Objects as text, in which names may stand twice."""
    pairs = draw(st.lists(st.tuples(NAMES, PLAIN), max_size=6))
    space = draw(SPACE)
    written = (
        f'{space}"{name}"{space}:{json.dumps(value, ensure_ascii=draw(st.booleans()))}{space}'
        for name, value in pairs
    )
    return f"{space}{{{','.join(written) or space}}}{space}"


def pairs_of(body: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=lambda pairs: pairs)
    return found


def others(body: bytes) -> str:
    return repr([(name, value) for name, value in pairs_of(body) if name != "cache_salt"])


@given(raw_objects(), st.sampled_from([SALT, "", 'quoted "é" \\']))
def test_every_reader_finds_our_salt_and_all_else(text: str, salt: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    changed = with_salt(body, salt)
    salts = [value for name, value in pairs_of(changed) if name == "cache_salt"]
    assert set(salts) == ({salt} if salt else set())
    assert others(changed) == others(body)
    assert with_salt(changed, salt) == changed
    assert Traces.of(body).salt or with_salt(body, "") == body


def test_a_body_of_many_members_is_not_searched_for_long() -> None:
    most = json.dumps({f"a{number}": 1 for number in range(MAX_MEMBERS - 1)} | {"cache_salt": "x"})
    assert json.loads(with_salt(most.encode(), SALT))["cache_salt"] == SALT
    with pytest.raises(UnreadableError):
        with_salt(f'{{"b":1,{most[1:]}'.encode(), SALT)
