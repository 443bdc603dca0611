"""The time of plans: jumps of the machine's clock, drift, and that time never runs backwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_operator.steady_clock import JUMP_S, SLEW, STANDS_S, SteadyClock

START = datetime(2026, 11, 29, 12, tzinfo=UTC)


class Machine:
    """A machine: ``seconds`` of true time since the start, and what its clock is ``off`` by."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.off = 0.0
        self.clock = SteadyClock(self.wall, lambda: self.seconds)

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.seconds - 100.0 + self.off)

    def after(self, seconds: float) -> float:
        """Return by how many seconds the time differs from the true one after ``seconds``."""
        self.seconds += seconds
        true = START + timedelta(seconds=self.seconds - 100.0)
        return (self.clock.now() - true).total_seconds()


def test_it_starts_with_the_clock_of_the_machine_and_runs() -> None:
    machine = Machine()
    assert machine.clock.now() == START
    assert machine.after(3_600) == 0.0
    assert machine.clock.now().tzinfo is UTC


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0, 86_400.0 * 365, 2.5, -2.5])
def test_a_jump_is_followed_when_it_has_stood(jump: float) -> None:
    machine = Machine()
    machine.off = jump
    assert machine.after(1) == pytest.approx(0.0)
    assert machine.after(STANDS_S - 1) == pytest.approx(0.0)
    assert machine.after(1) == pytest.approx(jump)
    assert machine.after(30) == pytest.approx(jump)


def test_a_jump_that_is_undone_is_never_seen() -> None:
    machine = Machine()
    for _ in range(10):
        machine.off = 7_200.0
        assert machine.after(STANDS_S - 1) == pytest.approx(0.0)
        machine.off = 0.0
        assert machine.after(1) == pytest.approx(0.0)


def test_another_jump_begins_to_stand_anew() -> None:
    machine = Machine()
    machine.off = 7_200.0
    assert machine.after(1) == pytest.approx(0.0)
    machine.off = 3_600.0
    assert machine.after(STANDS_S - 1) == pytest.approx(0.0)
    assert machine.after(STANDS_S - 1) == pytest.approx(0.0)
    assert machine.after(1) == pytest.approx(3_600.0)


@pytest.mark.parametrize("drift", [1.0, -1.0])
def test_drift_is_made_up_for_little_by_little(drift: float) -> None:
    machine = Machine()
    machine.off = drift
    assert machine.after(10) == pytest.approx(10 * SLEW * drift)
    assert machine.after(10) == pytest.approx(drift)
    assert machine.after(10) == pytest.approx(drift)


@given(
    st.lists(
        st.tuples(st.floats(0, 600), st.floats(-JUMP_S / 2, JUMP_S / 2)), min_size=1, max_size=50
    )
)
def test_without_jumps_time_never_runs_backwards_and_stays_close(
    steps: list[tuple[float, float]],
) -> None:
    machine = Machine()
    before = machine.clock.now()
    for seconds, off in steps:
        machine.off = off
        assert abs(machine.after(seconds)) <= JUMP_S
        now = machine.clock.now()
        assert now >= before
        before = now
