"""How long what the operator said is held without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.resource import Pinning
from promptprefix_sidecar import desired
from promptprefix_sidecar.actions import Policy, Unpin
from promptprefix_sidecar.holding import let_go
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.snapshot import FOREVER, Record, Snapshot

from .records import pin, placement, report, snapshot, warm

A = warm("a")
SOFT = warm("s", pinning=Pinning.SOFT, pinned=Pinning.SOFT, touch_at=30.0)
HELD = snapshot(A, SOFT, found=report(pin(A)))


@pytest.mark.parametrize(
    ("silent_s", "hold_s", "gone"),
    [(86_399.0, 86_400.0, False), (86_400.0, 86_400.0, True), (1e12, 0.0, False)],
)
def test_pins_are_held_for_a_bounded_time(silent_s: float, hold_s: float, gone: bool) -> None:
    after = let_go(HELD, silent_s, hold_s)
    assert after.let_go is gone
    assert (after == HELD) is not gone


def test_what_is_let_go_is_unpinned_and_nothing_is_renewed_touched_or_warmed() -> None:
    known = replace(HELD, records={**HELD.records, "n": Record(placement("n"))})
    after = let_go(known, 86_400.0, 86_400.0)
    planned = plan(after, Policy(), 1e6)
    assert planned.keep == Unpin(A.pin_id)
    assert planned.touch is planned.warm is None
    assert [r.id for r in after.records.values()] == ["a"]  # until its pin is gone


def test_pins_of_an_operator_that_never_answered_are_let_go_as_well() -> None:
    found = snapshot(found=report(pin(A)), known=False)
    assert not isinstance(plan(found, Policy(), 0.0).keep, Unpin)
    assert plan(let_go(found, 300.0, 300.0), Policy(), 0.0).keep == Unpin(A.pin_id)


def test_an_operator_that_comes_back_is_obeyed() -> None:
    after = desired.with_desired(let_go(HELD, 300.0, 300.0), [placement("a")])
    assert not after.let_go
    assert after.records["a"].wanted
    assert plan(after, Policy(), 0.0).wake_at < FOREVER


def test_letting_go_twice_changes_nothing() -> None:
    once: Snapshot = let_go(HELD, 300.0, 300.0)
    assert let_go(once, 400.0, 300.0) is once
