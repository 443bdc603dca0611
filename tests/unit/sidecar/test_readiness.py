"""When the pod is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.wire import Phase
from promptprefix_sidecar.pins import PinReport
from promptprefix_sidecar.readiness import (
    Readiness,
    ReadinessLimits,
    not_ready_because,
)
from promptprefix_sidecar.snapshot import FOREVER, Record, Snapshot

from .records import pin, placement, report, snapshot, warm

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


def test_an_engine_that_restarts_behind_the_same_process_is_another() -> None:
    first = snapshot(warm(), found=report(pin(warm()), epoch="e1"))
    ready = ANSWERED.seen(first, 4.0, LIMITS)
    assert (ready.latched, ready.epoch) == (True, "e1")
    second = snapshot(PENDING, found=report(epoch="e2"))
    ready = ready.seen(second, 5.0, LIMITS)
    assert not_ready_because(ready, second) == "waiting for ml/p (Pending)"
    assert ready.next_look(5.0, LIMITS) == 605.0
    warm_again = snapshot(warm(), found=report(pin(warm()), epoch="e2"))
    assert not_ready_because(ready.seen(warm_again, 6.0, LIMITS), warm_again) == ""


def test_a_plugin_that_is_heard_of_later_is_no_restart() -> None:
    ready = ANSWERED.seen(snapshot(warm()), 4.0, LIMITS)
    heard = ready.seen(snapshot(PENDING, found=report(epoch="e1")), 5.0, LIMITS)
    assert (heard.latched, heard.epoch) == (True, "e1")


@pytest.mark.parametrize(
    ("remembered", "found", "open_"),
    [
        (Readiness(boot="b", epoch="e", latched=True), None, True),
        (Readiness(boot="b", epoch="e", latched=True), report(epoch="e"), True),
        (Readiness(boot="b", latched=True), report(epoch="e"), True),
        (Readiness(boot="b", epoch="e", latched=True), report(epoch="f"), False),
        (Readiness(boot="a", epoch="e", latched=True), None, False),
    ],
)
def test_a_restarted_sidecar_lets_the_same_engine_serve_on(
    remembered: Readiness, found: PinReport | None, open_: bool
) -> None:
    """Without a word of the operator, and before anything is known to be warm."""
    known = snapshot(found=found, known=False)
    assert (not_ready_because(remembered.seen(known, 0.0, LIMITS), known) == "") is open_


def test_pins_that_were_let_go_close_no_gate_and_hold_up_no_new_engine() -> None:
    ready = ANSWERED.seen(snapshot(warm()), 4.0, LIMITS)
    gone = replace(snapshot(), let_go=True)
    assert not_ready_because(ready.seen(gone, 9e4, LIMITS), gone) == ""
    restarted = replace(gone, boot="c")
    ready = ready.seen(restarted, 9e4, LIMITS)
    assert (ready.latched, ready.failed_open) == (True, True)


@pytest.mark.parametrize(
    ("readiness", "now", "at"),
    [
        (FRESH, 0.0, FOREVER),
        (Readiness(boot="b", healthy_since=0.0), 1.0, 600.0),
        (ANSWERED, 2.0, 4.0),
        (ANSWERED, 4.0, 600.0),
        (ANSWERED, 600.0, FOREVER),
        (replace(ANSWERED, latched=True), 2.0, FOREVER),
    ],
)
def test_time_alone_may_open_the_gate(readiness: Readiness, now: float, at: float) -> None:
    assert readiness.next_look(now, LIMITS) == at


def test_opening_without_the_prefixes_is_told_apart() -> None:
    assert ANSWERED.seen(snapshot(PENDING), 600.0, LIMITS).failed_open
    assert not ANSWERED.seen(snapshot(warm()), 600.0, LIMITS).failed_open


def test_only_an_answer_for_this_boot_counts() -> None:
    seen = FRESH.seen(snapshot(), 0.0, LIMITS)
    assert seen.answered("other", 1.0) == seen
    assert seen.answered("b", 1.0).answered("b", 9.0).answered_at == 1.0
