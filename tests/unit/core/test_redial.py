"""When a client of the control API dials again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.redial import (
    ANSWER_TIMEOUT_S,
    MAX_PAUSE_S,
    OUTAGE,
    REDIALS_AT_ONCE,
    nobody_leads,
    redial_pause,
)
from promptprefix.wire import LONG_POLL_S


@pytest.mark.parametrize(
    ("standbys", "pause"),
    [(1, 0.0), (3, 0.0), (4, 0.1), (5, 0.2), (6, 0.4), (7, 0.8), (8, 1.6), (9, 2.0), (999, 2.0)],
)
def test_the_first_redials_come_at_once(standbys: int, pause: float) -> None:
    assert redial_pause(standbys, 1.0) == pytest.approx(pause)
    assert redial_pause(standbys, 0.0) == pytest.approx(pause / 2)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_long(standbys: int, jitter: float) -> None:
    assert 0 <= redial_pause(standbys, jitter) <= MAX_PAUSE_S


def test_bad_luck_is_no_outage_and_a_live_operator_is_given_time_to_answer() -> None:
    assert not nobody_leads(REDIALS_AT_ONCE)
    assert nobody_leads(OUTAGE)
    assert ANSWER_TIMEOUT_S > LONG_POLL_S
