"""How often something may be done: some times at once, and then at a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_operator.allowance import Allowance

BURST, SECONDS = 3, 10.0


def test_some_at_once_and_then_one_at_a_time() -> None:
    now = 0.0
    made = Allowance(lambda: now, BURST, SECONDS)
    assert [made.take() for _ in range(5)] == [True, True, True, False, False]
    now = 4.0
    assert made.wait == pytest.approx(6.0)
    assert not made.take()
    now = 10.5
    assert made.wait == 0
    assert [made.take(), made.take()] == [True, False]


def test_rest_saves_up_no_more_than_the_burst() -> None:
    now = 0.0
    made = Allowance(lambda: now, BURST, SECONDS)
    now = 1_000.0
    assert [made.take() for _ in range(BURST + 1)] == [True] * BURST + [False]


@given(st.lists(st.integers(0, 64), max_size=80))
def test_the_rate_is_kept_and_who_waits_may(gaps: list[int]) -> None:
    now, taken = 0.0, 0
    made = Allowance(lambda: now, BURST, SECONDS)
    for gap in gaps:
        now += gap / 4
        waits = made.wait
        assert 0 <= waits <= SECONDS
        assert made.take() == (waits == 0)
        taken += waits == 0
        assert taken <= BURST + now / SECONDS
