"""The index of blocks: what pods hold, whatever comes in which order, and how large it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.precise import block_index
from promptprefix_router.precise.block_index import EXPECTED_S, BlockIndex

PODS = ("a", "b", "c")
SEATS = {"a": 4, "b": 0, "c": 9}
ALL = 1 << 4 | 1 | 1 << 9
CHAIN = [bytes([n]) * 8 for n in range(6)]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "empty", "sweep"]),
        st.sampled_from(PODS),
        st.sets(st.sampled_from(CHAIN)),
    ),
    max_size=30,
)


def index(capacity: int = 1000) -> BlockIndex:
    """Return an index whose pods have seats."""
    made = BlockIndex(capacity)
    made.seat(SEATS)
    return made


def swept(made: BlockIndex) -> BlockIndex:
    """Return the index once there is nothing to sweep."""
    while made.unswept:
        made.sweep()
    return made


def depths_of(held: dict[str, set[bytes]]) -> dict[int, int]:
    """Return masks of seats by the number of leading names that pods hold."""
    found: dict[int, int] = {}
    for pod, names in held.items():
        depth = next((n for n, name in enumerate(CHAIN) if name not in names), len(CHAIN))
        if depth:
            found[depth] = found.get(depth, 0) | 1 << SEATS[pod]
    return found


@given(steps=STEPS)
def test_it_says_what_was_told(steps: list[tuple[str, str, set[bytes]]]) -> None:
    made, held = index(), {pod: set[bytes]() for pod in PODS}
    for what, pod, names in steps:
        if what == "add":
            made.add(pod, names)
            held[pod] |= names
        elif what == "remove":
            made.remove(pod, names)
            held[pod] -= names
        elif what == "empty":
            made.empty(pod)
            held[pod].clear()
        else:
            made.sweep()
        found = made.depths(CHAIN, ALL, 0.0)
        assert dict(found) == depths_of(held)
        assert found == sorted(found, reverse=True)
        assert {pod: made.held(pod) for pod in PODS} == {pod: len(held[pod]) for pod in PODS}
    assert len(swept(made)) == len(set().union(*held.values()))


def test_only_the_seats_that_are_asked_for_are_told() -> None:
    made = index()
    made.add("a", CHAIN)
    made.add("b", CHAIN[:2])
    assert made.depths(CHAIN, 1, 0.0) == [(2, 1)]
    assert made.depths(CHAIN, 1 << 9, 0.0) == []
    made.seat({"a": 0})
    assert made.depths(CHAIN, 1, 0.0) == [(6, 1)]


def test_blocks_without_their_beginning_are_no_prefix() -> None:
    made = index()
    made.add("a", CHAIN[1:])
    assert made.depths(CHAIN, ALL, 0.0) == []


def test_what_was_sent_counts_until_it_is_told_of_or_the_time_is_over() -> None:
    made = index()
    made.expect("a", CHAIN, 100.0)
    assert made.depths(CHAIN, ALL, 100.0 + EXPECTED_S / 2) == [(6, 1 << 4)]
    made.add("a", CHAIN[:2])
    assert made.depths(CHAIN, ALL, 100.0 + EXPECTED_S) == [(2, 1 << 4)]


def test_what_was_sent_again_is_expected_no_longer_than_at_first() -> None:
    made = index()
    made.expect("a", CHAIN, 100.0)
    made.expect("a", CHAIN, 100.0 + EXPECTED_S / 2)
    assert made.depths(CHAIN, ALL, 100.0 + EXPECTED_S) == []


def test_what_was_sent_counts_no_more_once_the_engine_tells_otherwise() -> None:
    made = index()
    made.expect("a", CHAIN, 100.0)
    made.remove("a", CHAIN[3:])
    assert made.depths(CHAIN, ALL, 100.0) == [(3, 1 << 4)]
    made.empty("a")
    assert made.depths(CHAIN, ALL, 100.0) == []
    made.expect("a", CHAIN[:1], 100.0)
    assert swept(made).depths(CHAIN, ALL, 100.0) == [(1, 1 << 4)]


def test_names_beyond_the_capacity_are_left_out_and_counted() -> None:
    made = index(capacity=4)
    assert made.add("a", CHAIN[:4])
    assert not made.add("b", CHAIN)
    assert (len(made), made.dropped) == (4, 2)
    assert made.depths(CHAIN, ALL, 0.0) == [(4, 1 << 4 | 1)]
    made.remove("a", CHAIN)
    made.remove("b", CHAIN)
    assert len(made) == 0
    assert made.add("c", CHAIN[:4])


def test_bits_are_used_again_and_stay_few() -> None:
    made = index()
    for _ in range(500):
        made.add("a", CHAIN)
        made.empty("a")
        made.sweep()
        made.sweep()
    swept(made)
    made.add("a", CHAIN)
    assert made.depths(CHAIN, ALL, 0.0) == [(6, 1 << 4)]
    assert made._used.bit_length() < 8


def test_what_is_expected_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "MOST_EXPECTED", 3)
    made = index()
    made.expect("a", CHAIN[:3], 0.0)
    made.expect("b", CHAIN[:2], 0.0)
    assert made.depths(CHAIN, ALL, 0.0) == [(2, 1)]


def test_one_pod_cannot_take_the_room_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "MOST_OF_POD", 4)
    made = index()
    assert made.add("a", CHAIN[:3])
    assert not made.add("a", CHAIN)
    assert (made.held("a"), made.dropped, len(made)) == (4, 2, 4)
    made.remove("a", CHAIN[:1])
    assert made.add("a", CHAIN[4:5])
    assert made.add("b", CHAIN[:4])
