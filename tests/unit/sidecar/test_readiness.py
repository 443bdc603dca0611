"""When the pod is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.wire import Phase
from promptprefix_sidecar.readiness import (
    Readiness,
    ReadinessLimits,
    not_ready_because,
)
from promptprefix_sidecar.snapshot import Record, Snapshot

from .records import placement, snapshot, warm

LIMITS = ReadinessLimits(timeout_s=600.0, settle_s=3.0)
FRESH = Readiness()
ANSWERED = Readiness(boot="b", healthy_since=0.0, answered_at=1.0)
PENDING = Record(placement("p"))
SETTLED = Record(placement("f"), phase=Phase.FAILED, reason="NoStaticHead", settled=True)
RETRIED = Record(placement("f"), phase=Phase.FAILED, reason="WarmFailed")


@pytest.mark.parametrize(
    ("readiness", "known", "now", "why"),
    [
        (FRESH, snapshot(healthy=False), 0.0, "the engine is not healthy"),
        (FRESH, snapshot(known=False), 0.0, "the operator has not answered yet"),
        (FRESH, snapshot(), 10.0, "waiting for placements"),
        (ANSWERED, snapshot(), 3.9, "waiting for placements"),
        (ANSWERED, snapshot(), 4.0, ""),
        (ANSWERED, snapshot(warm()), 4.0, ""),
        (ANSWERED, snapshot(SETTLED), 4.0, ""),
        (ANSWERED, snapshot(PENDING), 4.0, "waiting for ml/p (Pending)"),
        (ANSWERED, snapshot(RETRIED), 4.0, "waiting for ml/f (Failed)"),
        (ANSWERED, snapshot(replace(PENDING, wanted=False)), 4.0, ""),
        (ANSWERED, snapshot(PENDING), 599.0, "waiting for ml/p (Pending)"),
        (ANSWERED, snapshot(PENDING), 600.0, ""),
        (Readiness(boot="b", healthy_since=0.0), snapshot(known=False), 600.0, ""),
    ],
)
def test_readiness(readiness: Readiness, known: Snapshot, now: float, why: str) -> None:
    assert not_ready_because(readiness.seen(known, now, LIMITS), known) == why


def test_an_edit_never_takes_a_pod_out_of_service_and_a_restart_does() -> None:
    ready = ANSWERED.seen(snapshot(warm()), 4.0, LIMITS)
    edited = snapshot(warm(), PENDING)
    ready = ready.seen(edited, 5.0, LIMITS)
    assert not_ready_because(ready, edited) == ""
    down = snapshot(warm(), healthy=False)
    ready = ready.seen(down, 6.0, LIMITS)
    assert not_ready_because(ready, down) != ""
    assert not_ready_because(ready.seen(edited, 7.0, LIMITS), edited) == ""
    restarted = replace(edited, boot="c")
    ready = ready.seen(restarted, 8.0, LIMITS)
    assert not_ready_because(ready, restarted) != ""


def test_opening_without_the_prefixes_is_told_apart() -> None:
    assert ANSWERED.seen(snapshot(PENDING), 600.0, LIMITS).failed_open
    assert not ANSWERED.seen(snapshot(warm()), 600.0, LIMITS).failed_open


def test_only_an_answer_for_this_boot_counts() -> None:
    seen = FRESH.seen(snapshot(), 0.0, LIMITS)
    assert seen.answered("other", 1.0) == seen
    assert seen.answered("b", 1.0).answered("b", 9.0).answered_at == 1.0
