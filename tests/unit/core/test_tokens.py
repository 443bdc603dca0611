"""The head that renderings share, cut to blocks, and its digest."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.tokens import (
    PROBE_USER_TURNS,
    common_head,
    estimate_tokens,
    token_bytes,
    token_digest,
    whole_blocks,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@pytest.mark.parametrize(
    ("probes", "head"),
    [
        ([], ()),
        ([[1, 2]], (1, 2)),
        ([[1, 2, 3], [1, 2, 4]], (1, 2)),
        ([[1, 2, 3], [1, 2]], (1, 2)),
        ([[1], [2]], ()),
        ([[1, 2], []], ()),
    ],
)
def test_common_head(probes: list[list[int]], head: tuple[int, ...]) -> None:
    assert common_head(probes) == head


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=4))
def test_common_head_is_shared_and_longest(head: list[int], tails: list[list[int]]) -> None:
    probes = [head + tail for tail in tails]
    found = common_head(probes)
    assert found[: len(head)] == tuple(head)
    assert all(tuple(probe[: len(found)]) == found for probe in probes)
    following = {tuple(probe[len(found) : len(found) + 1]) for probe in probes}
    assert len(following) > 1 or following == {()}


@given(TOKENS, st.integers(1, 64))
def test_whole_blocks(head: list[int], size: int) -> None:
    cut = whole_blocks(head, size)
    assert len(cut) % size == 0
    assert 0 <= len(head) - len(cut) < size
    assert list(cut) == head[: len(cut)]


@given(TOKENS, TOKENS)
def test_digest_tells_tokens_apart(one: list[int], two: list[int]) -> None:
    assert (token_digest(one) == token_digest(two)) == (one == two)


def test_bytes_of_tokens() -> None:
    assert token_bytes([1, 258, 2**32 - 1]) == b"\x01\0\0\0\x02\x01\0\0\xff\xff\xff\xff"
    assert token_digest([]) == hashlib.sha256(b"").hexdigest()


@given(st.text(st.characters()))
def test_estimate_is_bytes_over_four_rounded_up(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert 4 * estimate_tokens(text) in range(size, size + 4)


def test_probes_begin_with_each_class_of_characters() -> None:
    first = [turn[0] for turn in PROBE_USER_TURNS]
    tests = (str.isalpha, str.isdigit, " ".__eq__, "\n".__eq__)
    assert all(any(test(char) for char in first) for test in tests)
    assert any("\u4e00" <= char <= "\u9fff" for char in first)
    assert any(ord(char) > 0xFFFF for char in first)
