"""How long sidecars have to report for the first time."""

from __future__ import annotations

import pytest

from promptprefix_operator.settling import ARRIVAL_S, LONGEST_S, RECONNECT_S, Settling


class Start:
    def __init__(self, least: float = RECONNECT_S) -> None:
        self.now = 1000.0
        self.came: float | None = None
        self.settling = Settling(lambda: self.now, lambda: self.came, least)

    def left(self, after: float, came: float | None = None) -> float:
        self.now = 1000.0 + after
        self.came = None if came is None else 1000.0 + came
        return self.settling.left


def test_without_arrivals_it_lasts_as_long_as_is_said() -> None:
    start = Start()
    assert start.left(0) == RECONNECT_S
    assert start.left(9, came=2) == pytest.approx(1.0)
    assert start.left(10, came=2) == 0.0


def test_it_goes_on_while_more_come_but_not_for_ever() -> None:
    start = Start()
    assert start.left(9, came=9) == pytest.approx(ARRIVAL_S)
    for after in range(10, 57):
        assert start.left(after, came=after) > 0
    assert start.left(59, came=59) == pytest.approx(LONGEST_S - 59)
    assert start.left(LONGEST_S, came=59.9) == 0.0


def test_what_is_over_stays_over() -> None:
    start = Start()
    assert start.left(RECONNECT_S) == 0.0
    assert start.left(RECONNECT_S + 1, came=RECONNECT_S + 1) == 0.0
    assert Start(least=0).left(0, came=0) == 0.0
