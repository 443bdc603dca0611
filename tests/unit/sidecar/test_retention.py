"""Earlier texts: what the engine tells of them decides, and nothing is computed for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar import desired, evidence, lifecycle, settling
from promptprefix_sidecar.actions import Policy, Prepare, Unpin, Warm
from promptprefix_sidecar.clock import Moment
from promptprefix_sidecar.pins import (
    PinReason,
    PinReport,
    WatchView,
    digest_of,
    owner_of,
    pin_id,
)
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.readiness import all_settled
from promptprefix_sidecar.snapshot import FoundPin, Record

from .records import head, pin, placement, report, snapshot, warm

NOW = Moment(now=0.0, wall=1_000_000.0)
A = warm("a")
KEPT = placement("a").model_copy(update={"retained": True})
LOOSE = KEPT.model_copy(update={"pinning": Pinning.NONE})


def watching(*resident: int) -> PinReport:
    views = [WatchView(id=A.pin_id, tokens=A.tokens, resident_tokens=tokens) for tokens in resident]
    return replace(report(), watched={view.id: view for view in views})


@pytest.mark.parametrize(
    ("record", "found", "phase", "pinned"),
    [
        (Record(KEPT), report(pin(A)), Phase.WARM, Pinning.HARD),
        (Record(KEPT), report(), Phase.PENDING, Pinning.NONE),
        (Record(KEPT), report(pin(warm("b"))), Phase.PENDING, Pinning.NONE),
        (Record(KEPT), watching(A.tokens), Phase.PENDING, Pinning.NONE),
        (Record(LOOSE), report(pin(A)), Phase.WARM, Pinning.NONE),
        (Record(LOOSE), watching(A.tokens), Phase.WARM, Pinning.NONE),
        (Record(LOOSE), watching(A.tokens - 16), Phase.PENDING, Pinning.NONE),
    ],
)
def test_it_is_found_by_the_owner_of_its_pin(
    record: Record, found: PinReport, phase: Phase, pinned: Pinning
) -> None:
    known = settling.settle(snapshot(record, found=found))
    after = known.records["a"]
    assert (after.phase, after.pinned) == (phase, pinned)
    assert (after.token_digest == head().digest) is (phase is Phase.WARM)
    assert after.tokens == (A.tokens if phase is Phase.WARM else 0)
    assert plan(known, Policy(), NOW.now).warm is None
    assert all_settled(known)


def test_a_pin_that_is_gone_is_not_taken_again() -> None:
    known = settling.settle(snapshot(Record(KEPT), found=report(pin(A))))
    after = evidence.with_report(known, report(at=1.0), NOW)
    assert (after.records["a"].phase, after.records["a"].tokens) == (Phase.PENDING, 0)
    assert plan(after, Policy(), 1.0).warm is None


def test_one_with_known_tokens_is_warm_until_the_engine_drops_some() -> None:
    known = desired.with_desired(snapshot(A, found=report(pin(A))), [LOOSE])
    assert (known.records["a"].phase, known.records["a"].pinned) == (Phase.WARM, Pinning.NONE)
    assert plan(known, Policy(), NOW.now).keep == Unpin(A.pin_id)
    whole = evidence.with_report(known, watching(A.tokens), NOW)
    assert whole.records["a"].phase is Phase.WARM
    short = evidence.with_report(whole, watching(A.tokens - 16), NOW)
    assert short.records["a"].phase is Phase.PENDING
    assert plan(short, Policy(), NOW.now).warm is None


def test_a_dead_pin_goes_and_a_whole_one_is_spared() -> None:
    dead = pin(A)
    dead = replace(dead, view=dead.view.model_copy(update={"resident_tokens": 16}))
    known = settling.settle(snapshot(Record(KEPT), found=report(dead)))
    assert plan(known, Policy(), NOW.now).keep == Unpin(A.pin_id)
    known = settling.settle(snapshot(Record(KEPT), found=report(pin(A))))
    assert plan(known, Policy(), NOW.now).keep is None


def test_declared_again_it_is_checked_while_it_stays_warm() -> None:
    known = settling.settle(snapshot(Record(KEPT), found=report(pin(A))))
    again = desired.with_desired(known, [A.placement])
    record = again.records["a"]
    assert (record.phase, record.found) == (Phase.WARM, FoundPin(A.pin_id, A.tokens))
    assert plan(again, Policy(), NOW.now).warm == Prepare("a")


def test_declared_again_it_is_warmed_without_a_pin_when_the_engine_gives_its_pin_up() -> None:
    known = settling.settle(snapshot(Record(KEPT), found=report(pin(A))))
    known = desired.with_desired(known, [A.placement])
    checked = partial(lifecycle.prepared, head=head(), now=0.0, recheck_at=300.0)
    known = settling.change(known, "a", checked)
    assert known.records["a"].phase is Phase.WARM
    gone = replace(report(at=1.0), released={A.pin_id: PinReason.PRESSURE_VALVE})
    after = evidence.with_report(known, gone, replace(NOW, now=1.0))
    assert plan(after, Policy(), 31.0).warm == Warm("a", hard=False)


@pytest.mark.parametrize("length", [1, 49, 128, 129, 400])
def test_pin_ids_fit_the_plugin_and_tell_owner_and_digest(length: int) -> None:
    made = pin_id("p" * length, head().digest)
    assert len(made) <= 256
    assert digest_of(made) == head().digest
    assert owner_of(made) == owner_of(pin_id("p" * length, head(first=9).digest))
    assert digest_of("p#0123456789abcdef") == ""


def test_a_salted_text_stays_salted_whatever_an_operator_knows_of_it() -> None:
    record = replace(A, placement=A.placement.model_copy(update={"salted": True}))
    told = A.placement.model_copy(update={"salted": False, "retained": True})
    known = desired.with_desired(snapshot(record, found=report(pin(A))), [told])
    assert known.records["a"].placement == told.model_copy(update={"salted": True})


def test_a_kept_text_has_the_model_that_it_always_had() -> None:
    told = A.placement.model_copy(update={"model": "another", "retained": True})
    known = desired.with_desired(snapshot(A, found=report(pin(A))), [told])
    [record] = known.records.values()
    assert record.placement == told.model_copy(update={"model": A.placement.model})
    assert (record.phase, record.pinned) == (A.phase, A.pinned)
