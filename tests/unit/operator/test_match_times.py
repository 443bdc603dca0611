"""Matches that pods date by their clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.wire import EngineState, Phase, PlacementState, SidecarState
from promptprefix_operator.match_times import SAME_S, with_own_times

NOW = 1_796_000_000.0


def told(*hits: float | None) -> SidecarState:
    return SidecarState(
        engine=EngineState(healthy=True, address="a", port=1),
        placements=tuple(
            PlacementState(id=f"u-{index}", phase=Phase.WARM, last_hit=hit)
            for index, hit in enumerate(hits)
        ),
    )


def hit(state: SidecarState) -> float | None:
    return state.placements[0].last_hit


@pytest.mark.parametrize(
    ("last_hit", "sent", "found"),
    [
        (NOW - 30, None, NOW - 30),
        (NOW + 30, None, NOW),
        (1e18, None, NOW),
        (NOW - 30, NOW, NOW - 30),
        (NOW - 5_030, NOW - 5_000, NOW - 30),
        (NOW + 4_970, NOW + 5_000, NOW - 30),
        (NOW + 30, NOW, NOW),
        (30, 60, NOW - 30),
        (0, 1e300, 0),
        (1e300, 0, NOW),
        (None, NOW, None),
    ],
)
def test_ages_count_by_the_clock_that_dated_them(
    last_hit: float | None, sent: float | None, found: float | None
) -> None:
    assert hit(with_own_times(told(last_hit), sent, NOW, None)) == found


def test_the_same_match_is_told_alike_however_long_its_report_takes() -> None:
    first = with_own_times(told(NOW - 130, None), NOW - 100, NOW + 1.5, None)
    assert hit(first) == NOW - 28.5
    again = with_own_times(told(NOW - 130, None), NOW - 70, NOW + 30, first)
    assert again == first
    later = with_own_times(told(NOW - 90, None), NOW - 70, NOW + 30, again)
    assert hit(later) == NOW + 10
    lost = with_own_times(told(None), NOW, NOW + 60, later)
    assert hit(lost) is None, "an engine that has restarted knows of none"


def test_a_report_without_matches_is_the_same_object() -> None:
    state = told(None, None)
    assert with_own_times(state, NOW, NOW, None) is state


seconds = st.floats(0, allow_infinity=False, allow_nan=False)
near = st.floats(-9_000, 9_000)


@given(seconds, st.none() | seconds, st.none() | st.floats(0, NOW))
def test_no_match_is_yet_to_come(last_hit: float, sent: float | None, known: float | None) -> None:
    found = hit(with_own_times(told(last_hit), sent, NOW, told(known)))
    assert found is not None
    assert 0 <= found <= NOW


@given(near, st.floats(0, 9_000), st.floats(0, 1))
def test_clocks_that_differ_do_no_harm(skew: float, age: float, way: float) -> None:
    sent = NOW + skew
    found = hit(with_own_times(told(sent - age), sent, NOW + way, None))
    assert found is not None
    assert abs(found - (NOW - age)) < SAME_S
