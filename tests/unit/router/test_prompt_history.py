"""What is remembered of the prompts that were sent, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.choosing.prompt_history import FRESH_S, MAX_AGE_S, PromptHistory

ALL = 0b1111


def history(capacity: int = 1000, rooms: dict[int, int] | None = None) -> PromptHistory:
    """Return an empty history of four seats."""
    made = PromptHistory(capacity)
    made.resize(dict.fromkeys(range(4), 0) if rooms is None else rooms)
    return made


def test_the_deepest_come_first_and_each_once() -> None:
    made = history()
    made.note(0, (1, 2, 3), 0.0)
    made.note(1, (1, 2), 0.0)
    made.note(2, (1, 2, 9), 0.0)
    made.note(3, (7, 2, 3), 0.0)
    assert made.depths((1, 2, 3, 4), ALL) == [(3, 0b0001), (2, 0b0110)]
    assert made.depths((1, 2, 3, 4), 0b0110) == [(2, 0b0110)]
    assert made.depths((5, 1), ALL) == []
    assert made.depths((), ALL) == []


def test_no_more_than_an_engine_can_hold_the_oldest_go_first() -> None:
    made = history(rooms={0: 4, 1: 0})
    made.note(0, (1, 2, 3), 0.0)
    made.note(0, (1, 5), 10.0)
    assert made.depths((1, 2, 3), ALL) == [(3, 0b01)]
    made.note(0, (6,), 20.0)
    assert made.depths((1, 2, 3), ALL) == [(2, 0b01)]
    made.note(0, (7,), 30.0)
    assert made.depths((1, 2, 3), ALL) == [(1, 0b01)]
    assert len(made) == 4


def test_of_a_prompt_that_is_too_long_the_beginning_stays() -> None:
    made = history(rooms={0: 3})
    made.note(0, tuple(range(100)), 0.0)
    assert made.depths(tuple(range(100)), 1) == [(3, 1)]


def test_all_together_are_bounded_in_equal_shares() -> None:
    made = history(capacity=40)
    for number in range(100):
        for seat in range(4):
            made.note(seat, (seat * 1000 + number,), float(number))
    assert len(made) == 40
    made.resize({0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0})
    assert len(made) == 20


def test_what_is_old_goes_when_more_is_sent() -> None:
    made = history()
    made.note(0, (1, 2), 0.0)
    made.note(0, (3,), MAX_AGE_S)
    assert made.depths((1, 2), ALL) == [(2, 1)]
    made.note(0, (4,), MAX_AGE_S + 1)
    assert made.depths((1, 2), ALL) == []
    assert made.depths((3,), ALL) == [(1, 1)]


def test_a_seat_that_is_forgotten_or_gone_has_seen_nothing() -> None:
    made = history()
    for seat in (0, 1, 2):
        made.note(seat, (1, 2), 0.0)
    made.forget(0)
    made.forget(3)
    assert made.depths((1, 2), ALL) == [(2, 0b0110)]
    made.resize({0: 0, 1: 0})
    assert made.depths((1, 2), ALL) == [(2, 0b0010)]
    made.forget(1)
    assert len(made) == 0
    assert made.depths((1,), ALL) == []


CHAINS = [(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 6), (7, 8, 9), (7, 8, 10, 11)]
notes = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(CHAINS), st.integers(0, 9)))


@given(notes=notes, rooms=st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_what_is_believed_was_sent_and_has_room(
    notes: list[tuple[int, tuple[int, ...], int]], rooms: list[int]
) -> None:
    made = history(rooms=dict(enumerate(rooms)))
    now = 0.0
    sent: dict[int, list[tuple[int, ...]]] = {seat: [] for seat in range(4)}
    for seat, chain, later in notes:
        now += later
        made.note(seat, chain, now)
        sent[seat].append(chain)
        # The latest is known as far as there is room.
        room = min(rooms[seat], len(chain))
        assert made.depths(chain, 1 << seat) == [(room, 1 << seat)] or later < FRESH_S
    for chain in CHAINS:
        found = made.depths(chain, ALL)
        assert [depth for depth, _ in found] == sorted({depth for depth, _ in found}, reverse=True)
        for depth, seats in found:
            for seat in range(4):
                if seats >> seat & 1:
                    assert any(each[:depth] == chain[:depth] for each in sent[seat])
                    assert depth <= rooms[seat]
