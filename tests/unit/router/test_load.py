"""Envoy's counts and our picks, joined without counting twice for long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.choosing.load import LoadLedger, LoadReading


class Stand:
    """A ledger whose clock and Envoy are ours."""

    def __init__(self) -> None:
        self.now = 0.0
        self.served = 0
        self.ledger = LoadLedger(lambda: self.now)
        self.ledger.seat({"a": 0, "b": 1})

    def read(self, served: int = 0, **active: int) -> None:
        """Let Envoy say so many active requests, and ``served`` more than before."""
        self.served += served
        self.ledger.begin_reading()
        self.ledger.finish_reading(LoadReading(active, served=self.served))

    def pick(self, *addresses: str) -> None:
        """Pick these now."""
        for address in addresses:
            self.ledger.pick(address)

    def learn(self) -> None:
        """Have readings once a second of requests that take 0.1 s, 10 at a time."""
        for _ in range(4):
            self.now += 1
            self.read(100, a=10)


def test_picks_count_until_a_reading_holds_them() -> None:
    ledger = LoadLedger()
    ledger.pick("a")
    ledger.begin_reading()
    ledger.pick("a")
    assert ledger.load("a") == 2
    ledger.finish_reading(LoadReading({"a": 1}))
    assert ledger.load("a") == 2
    ledger.begin_reading()
    ledger.finish_reading(LoadReading({"a": 1}))
    assert ledger.load("a") == 1


def test_a_failed_reading_loses_nothing() -> None:
    ledger = LoadLedger()
    ledger.pick("a")
    ledger.begin_reading()
    ledger.pick("a")
    ledger.begin_reading()
    assert ledger.load("a") == 2


def test_idle_means_nothing_known_is_active() -> None:
    ledger = LoadLedger()
    assert ledger.idle
    ledger.pick("a")
    assert not ledger.idle
    ledger.begin_reading()
    assert not ledger.idle
    ledger.finish_reading(LoadReading({"a": 1}))
    assert not ledger.idle
    ledger.finish_reading(LoadReading({"a": 0}))
    assert ledger.idle


def test_endpoints_that_left_are_forgotten() -> None:
    ledger = LoadLedger()
    ledger.seat({"a": 0, "b": 1})
    ledger.pick("a")
    ledger.pick("b")
    ledger.seat({"b": 1})
    assert (ledger.load("a"), ledger.load("b")) == (0, 1)
    assert ledger.total(0b11) == 1


def test_picks_end_when_requests_take_less_than_readings_are_apart() -> None:
    stand = Stand()
    stand.learn()
    stand.pick("a", "b")
    assert (stand.ledger.load("a"), stand.ledger.load("b")) == (11, 1)
    stand.now += 0.09
    stand.pick("b")
    assert (stand.ledger.load("a"), stand.ledger.load("b")) == (11, 2)
    stand.now += 0.05
    assert (stand.ledger.load("a"), stand.ledger.load("b")) == (10, 1)
    stand.now += 0.06
    stand.ledger.forget_ended()
    assert stand.ledger.least(0b11) == (0, 0b10)
    assert not stand.ledger.idle, "a reading has something to tell"
    stand.read()
    assert stand.ledger.idle


def test_requests_that_a_reading_showed_make_room_for_newer_ones() -> None:
    stand = Stand()
    stand.learn()
    stand.now += 0.95
    stand.pick("a", "a", "b", "b")
    stand.now += 0.05
    stand.read(100, a=2, b=1)
    stand.now += 0.06
    assert stand.ledger.load("a") == 2, "never less than Envoy said"
    stand.pick("a", "b", "b", "b")
    assert (stand.ledger.load("a"), stand.ledger.load("b")) == (2, 3)
    stand.pick("a", "a")
    assert stand.ledger.load("a") == 3


def test_what_outlived_the_others_stays_until_it_is_seen_to_end() -> None:
    stand = Stand()
    stand.learn()
    stand.pick("a", "a")
    stand.now += 1
    stand.read(60, a=2)
    stand.pick("a")
    assert stand.ledger.load("a") == 3
    stand.now += 0.5
    assert stand.ledger.load("a") == 2


def test_a_pick_while_envoy_is_asked_may_end_before_the_answer() -> None:
    stand = Stand()
    stand.learn()
    stand.now += 1
    stand.ledger.begin_reading()
    stand.pick("b", "a")
    stand.now += 0.09
    stand.pick("b")
    stand.now += 0.05
    assert stand.ledger.load("b") == 1
    stand.ledger.finish_reading(LoadReading({"b": 1}, served=stand.served + 100))
    assert stand.ledger.load("b") == 2
    stand.now += 0.1
    assert stand.ledger.load("b") == 1


@pytest.mark.parametrize(
    ("served", "active", "after_s"),
    [(5, 6, 1.0), (0, 1, 1.0), (-1000, 10, 1.0), (100, 100, 1.0), (8, 10, 0.05)],
    ids=["longer", "nothing-begun", "restart", "as-long", "read-often"],
)
def test_picks_count_until_a_reading_when_requests_may_take_longer(
    served: int, active: int, after_s: float
) -> None:
    stand = Stand()
    stand.learn()
    stand.now += after_s
    stand.read(served, a=active)
    stand.pick("b")
    stand.now += 60
    assert stand.ledger.load("b") == 1


def test_little_is_learnt_from_few_requests() -> None:
    stand = Stand()
    for _ in range(4):
        stand.now += 1
        stand.read(2, a=0)
    stand.pick("b")
    stand.now += 60
    assert stand.ledger.load("b") == 1


def test_endpoints_that_come_back_have_no_old_picks() -> None:
    stand = Stand()
    stand.learn()
    stand.pick("b")
    stand.now += 0.09
    stand.ledger.seat({"a": 0})
    stand.ledger.seat({"a": 0, "b": 1})
    stand.pick("b")
    stand.now += 0.05
    assert stand.ledger.load("b") == 1


steps = st.lists(
    st.one_of(
        st.sampled_from("abcdef"),
        st.dictionaries(st.sampled_from("abcdefx"), st.integers(0, 4)),
        st.permutations("abcdef").map(tuple),
        st.integers(0, 5),
    )
)


@given(steps=steps, mask=st.integers(1, 63), bound=st.integers(0, 6))
def test_masks_say_the_same_as_counting(steps: list[Any], mask: int, bound: int) -> None:
    """Steps: a pick, a reading, new seats, or requests of others."""
    ledger = LoadLedger()
    seats = {address: seat for seat, address in enumerate("abcdef")}
    ledger.seat(seats)
    for step in steps:
        if isinstance(step, str):
            ledger.pick(step)
        elif isinstance(step, dict):
            ledger.begin_reading()
            ledger.finish_reading(LoadReading(step, frozenset(step)))
        elif isinstance(step, int):
            ledger.count_others("abcdef"[step], step)
            ledger.end("abcdef"[-step])
        else:
            seats = {address: seat for seat, address in enumerate(step)}
            ledger.seat(seats)
    loads = {seat: ledger.load(address) for address, seat in seats.items()}
    among = {seat for seat in loads if mask >> seat & 1}
    least = min(loads[seat] for seat in among)
    idlest = sum(1 << seat for seat in among if loads[seat] == least)
    assert ledger.least(mask) == (least, idlest)
    assert ledger.total(mask) == sum(loads[seat] for seat in among)
    assert ledger.below(bound) == sum(1 << seat for seat in loads if loads[seat] < bound)


@given(
    steps=st.lists(
        st.one_of(
            st.sampled_from("ab"),
            st.floats(0, 0.2),
            st.just(None),
            st.tuples(st.integers(0, 50), st.integers(0, 4), st.integers(0, 4)),
        )
    )
)
def test_a_load_is_between_what_was_seen_and_that_with_all_picks_since(steps: list[Any]) -> None:
    """Steps: a pick, time, Envoy asked, or its answer."""
    stand, plain = Stand(), LoadLedger(lambda: 0.0)
    stand.learn()
    plain.finish_reading(LoadReading({"a": 10}))
    seen = {"a": 10, "b": 0}
    stand.ledger.begin_reading()
    for step in steps:
        if isinstance(step, str):
            stand.pick(step)
            plain.pick(step)
        elif isinstance(step, float):
            stand.now += step
        elif step is None:
            stand.ledger.begin_reading()
            plain.begin_reading()
        else:
            begun, *active = step
            stand.served += begun
            seen = dict(zip("ab", active, strict=True))
            stand.ledger.finish_reading(LoadReading(seen, served=stand.served))
            plain.finish_reading(LoadReading(seen))
        loads = {address: stand.ledger.load(address) for address in "ab"}
        for address, load in loads.items():
            assert seen[address] <= load <= plain.load(address)
        assert stand.ledger.least(0b01)[0] == loads["a"]
        assert stand.ledger.total(0b11) == sum(loads.values())
