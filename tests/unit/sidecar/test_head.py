"""The token-clean head, cut from probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.tokens import common_head, token_digest
from promptprefix.wire import HEAD_LADDER
from promptprefix_sidecar.head import (
    EDGE_MARGIN,
    HeadError,
    clean_head,
    head_ladder,
    near_block_edge,
)

BLOCK = 4
PROBES = st.lists(st.lists(st.integers(0, 3), max_size=20), min_size=2, max_size=5)


@given(PROBES)
def test_the_head_begins_every_probe_and_has_whole_blocks(probes: list[list[int]]) -> None:
    try:
        found = clean_head(probes, BLOCK)
    except HeadError:
        assert len(common_head(probes)) < BLOCK
        return
    assert found.tokens % BLOCK == 0
    assert len(common_head(probes)) - found.tokens < BLOCK
    ids = found.prompt_ids
    assert len(ids) == found.tokens + 1
    assert all(probe[: found.tokens] == ids[:-1] for probe in probes)
    assert found.digest == token_digest(ids[:-1])


def test_the_extra_token_is_one_that_a_request_has() -> None:
    assert clean_head([[1, 1, 1, 1, 9, 5], [1, 1, 1, 1, 8]], BLOCK).prompt_ids == [1, 1, 1, 1, 9]


@pytest.mark.parametrize(
    ("probes", "words"),
    [
        ([[1, 2, 9], [1, 2, 8]], "too short"),
        ([[1, 9, 2, 2, 2, 2, 2], [1, 8, 2, 2, 2, 2, 2]], "mixes system text or tools into"),
    ],
)
def test_why_there_is_no_head(probes: list[list[int]], words: str) -> None:
    with pytest.raises(HeadError, match=words) as caught:
        clean_head(probes, BLOCK)
    assert caught.value.reason == "NoStaticHead"


@pytest.mark.parametrize(
    ("length", "near"),
    [(3, False), (16, True), (16 + EDGE_MARGIN - 1, True), (16 + EDGE_MARGIN, False), (31, False)],
)
def test_more_is_asked_where_the_head_ends_just_after_a_block(length: int, near: bool) -> None:
    probes = [[*range(length), 77], [*range(length), 78]]
    assert near_block_edge(probes, 16) is near


@given(st.lists(st.integers(0, 1), max_size=80), st.lists(st.integers(0, 1), max_size=80))
def test_equal_rungs_are_shared_blocks(one: list[int], other: list[int]) -> None:
    first, second = head_ladder(one, BLOCK), head_ladder(other, BLOCK)
    assert len(first) == sum(blocks * BLOCK <= len(one) for blocks in HEAD_LADDER)
    for blocks, left, right in zip(HEAD_LADDER, first, second, strict=False):
        assert (left == right) is (one[: blocks * BLOCK] == other[: blocks * BLOCK])


def test_a_rung_begins_the_digest_of_its_tokens() -> None:
    found = clean_head([[*range(13), 1], [*range(13), 2]], BLOCK)
    assert found.ladder == head_ladder(range(12), BLOCK)
    assert found.ladder == tuple(token_digest(range(n))[:12] for n in (4, 8, 12))
