"""Envoy's counts and our picks, joined without counting twice for long."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.choosing.load import LoadLedger, LoadReading


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
