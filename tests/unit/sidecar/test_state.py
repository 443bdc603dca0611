"""What is told to the operator, and what of it can't wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.wire import Phase
from promptprefix_sidecar.snapshot import GateView, Snapshot
from promptprefix_sidecar.state import Address, sidecar_state, urgent_part

from .records import report, snapshot, warm

ADDRESS = Address("10.0.0.7", 8000)
KNOWN = snapshot(replace(warm(), last_hit=1.0), found=report())


def test_gate_and_scheme_are_told() -> None:
    state = sidecar_state(replace(KNOWN, gate=GateView(open=True, failed_open=True)), ADDRESS)
    assert (state.ready, state.failed_open, state.engine.tls) == (True, True, False)
    state = sidecar_state(KNOWN, replace(ADDRESS, tls=True))
    assert (state.ready, state.failed_open, state.engine.tls) == (False, False, True)
    assert state.engine.port == 8000


@pytest.mark.parametrize(
    ("after", "urgent"),
    [
        (replace(KNOWN, gate=GateView(open=True)), True),
        (replace(KNOWN, gate=GateView(failed_open=True)), True),
        (snapshot(warm(), found=report(), healthy=False), True),
        (snapshot(replace(warm(), last_hit=5.0), found=report()), False),
        (snapshot(replace(warm(), last_hit=100.0), found=report()), True),
        (
            snapshot(replace(warm(), last_hit=1.0), found=replace(report(), blocks_free=1)),
            False,
        ),
        (snapshot(replace(warm(), last_hit=1.0), found=report(), waiting=9), False),
    ],
)
def test_only_what_matters_cuts_the_wait_short(after: Snapshot, urgent: bool) -> None:
    before = urgent_part(sidecar_state(KNOWN, ADDRESS))
    assert (urgent_part(sidecar_state(after, ADDRESS)) != before) is urgent


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.WARMING, Phase.RELEASED])
def test_the_progress_of_a_warm_up_cuts_no_wait_short(phase: Phase) -> None:
    before, after = (
        urgent_part(sidecar_state(snapshot(replace(warm(), phase=phase, **more)), ADDRESS))
        for more in ({"resident_tokens": 16}, {"resident_tokens": 32})
    )
    assert before == after


def test_a_match_before_the_clock_was_set_is_told_as_the_earliest_time() -> None:
    state = sidecar_state(snapshot(replace(warm(), last_hit=-5.0), found=report()), ADDRESS)
    assert [each.last_hit for each in state.placements] == [0.0]
