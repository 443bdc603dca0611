"""Envoy's counts and our picks, joined without counting twice for long."""

from __future__ import annotations

from promptprefix_router.load import LoadLedger, LoadReading


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


def test_equal_load_goes_round() -> None:
    ledger = LoadLedger()
    order = []
    for _ in range(6):
        address = min(("a", "b", "c"), key=ledger.rank)
        order.append(address)
        ledger.pick(address)
        ledger.begin_reading()
        ledger.finish_reading(LoadReading({}))
    assert order == ["a", "b", "c", "a", "b", "c"]


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
    ledger.pick("a")
    ledger.pick("b")
    ledger.retain(["b"])
    assert (ledger.load("a"), ledger.load("b")) == (0, 1)
    assert ledger.rank("a") == (0, 0)
