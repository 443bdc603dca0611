"""What the events change in the records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.actions import Policy, Renew, Report
from promptprefix_sidecar.clock import Moment
from promptprefix_sidecar.evidence import with_report
from promptprefix_sidecar.kv_events.effects import MAX_DOUBTS, with_residencies
from promptprefix_sidecar.kv_events.index import Residency, Standing
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.snapshot import FOREVER, NEVER, Record, Snapshot

from .records import pin, prepared, report, snapshot, warm

NOW, PACE = 50.0, 30.0
WHOLE = Residency(Standing.RESIDENT, 32)
LOST = Residency(Standing.LOST, 16, copied=32)
DOUBTFUL = Residency(Standing.DOUBTFUL, 16)
UNKNOWN = Residency()


def soft(pinned: Pinning = Pinning.SOFT) -> Record:
    return warm(pinning=pinned, pinned=pinned, touch_at=70.0)


def after(
    before: Record | Snapshot, residency: Residency, *, news: bool = True
) -> tuple[Snapshot, Record]:
    known = snapshot(before) if isinstance(before, Record) else before
    found = with_residencies(known, {"a": residency}, ["a"] if news else [], NOW, PACE)
    return found, found.records["a"]


def test_a_soft_pin_that_is_lost_is_an_eviction_and_warmed_again_at_once() -> None:
    _, record = after(soft(), LOST)
    assert (record.phase, record.soft_evictions) == (Phase.PENDING, 1)
    assert (record.resident_tokens, record.copied_tokens) == (16, 32)
    assert (record.retry_at, record.waiting_since) == (NOW, NOW)


def test_soft_prefixes_that_evict_each_other_are_warmed_ever_more_rarely() -> None:
    record, now, waits = soft(), NOW, []
    for _ in range(6):
        found = with_residencies(snapshot(record), {"a": LOST}, ["a"], now, PACE)
        record = found.records["a"]
        waits.append(record.retry_at - now)
        assert record.waiting_since == record.retry_at
        now = record.retry_at + 1.0
        record = replace(record, phase=Phase.WARM, pinned=Pinning.SOFT, touch_at=now + PACE)
    assert waits == [0, 30, 60, 120, 240, 300]
    found = with_residencies(snapshot(record), {"a": LOST}, ["a"], now + 600.0, PACE)
    assert found.records["a"].retry_at == now + 600.0


def test_doubts_in_a_row_ask_for_one_touch_and_then_leave_the_usual_one() -> None:
    _, first = after(soft(), DOUBTFUL)
    _, second = after(first, DOUBTFUL)
    assert second is first
    touched = replace(first, touch_at=NOW + PACE)
    assert after(touched, DOUBTFUL)[1] is touched


def test_a_loss_counts_once() -> None:
    """A warm-up that found it cached after all is newer evidence than the loss."""
    _, record = after(replace(soft(), soft_evictions=1), LOST, news=False)
    assert (record.phase, record.soft_evictions) == (Phase.WARM, 1)
    assert record.unproved


def test_where_there_may_be_another_copy_a_touch_tells() -> None:
    _, record = after(soft(), DOUBTFUL)
    assert (record.phase, record.soft_evictions) == (Phase.WARM, 0)
    assert (record.touch_at, record.unproved) == (NOW, True)


def test_after_missed_events_the_next_touch_proves_it_anew() -> None:
    _, record = after(soft(), UNKNOWN)
    assert (record.phase, record.touch_at, record.unproved) == (Phase.WARM, 70.0, True)
    assert record.resident_tokens == 32
    _, proved = after(record, WHOLE)
    assert not proved.unproved


@pytest.mark.parametrize("residency", [LOST, DOUBTFUL])
def test_without_a_pin_it_is_warmed_again_at_a_pace_and_no_eviction(residency: Residency) -> None:
    _, record = after(soft(Pinning.NONE), residency)
    assert (record.phase, record.soft_evictions, record.hard_evictions) == (Phase.PENDING, 0, 0)
    assert record.retry_at == NOW + PACE


def test_of_a_hard_pin_the_plugin_is_asked_at_once() -> None:
    pinned = warm()
    known = snapshot(pinned, found=report(pin(pinned, seen_at=49.0), at=49.0))
    found, record = after(known, LOST)
    assert record.phase is Phase.WARM
    assert (record.hard_evictions, record.unproved) == (0, False)
    assert plan(found, Policy(), NOW).keep == Renew(((pinned.pin_id, 0),))
    assert not isinstance(plan(known, Policy(), NOW).keep, Renew)
    # A report may have been made before, or look at other pins: the answer to the renewal decides.
    reported = with_report(found, report(pin(pinned, seen_at=NOW), at=NOW), Moment(NOW, 0.0))
    assert plan(reported, Policy(), NOW).keep == Renew(((pinned.pin_id, 0),))
    unseen, _ = after(snapshot(pinned, found=report(at=49.0)), LOST)
    assert plan(unseen, Policy(), NOW).keep == Report()
    quiet, _ = after(known, WHOLE)
    assert quiet.plugin is known.plugin


def test_of_many_hard_pins_that_go_at_once_one_report_tells() -> None:
    records = [warm(str(number)) for number in range(40)]
    pins = [pin(record, seen_at=49.0) for record in records]
    known = snapshot(*records, found=report(*pins, at=49.0))
    lost = {record.id: LOST for record in records}
    found = with_residencies(known, lost, lost, NOW, PACE)
    renewal = plan(found, Policy(), NOW).keep
    assert isinstance(renewal, Renew)
    assert len(renewal.pins) == MAX_DOUBTS
    gone = with_report(found, report(at=NOW), Moment(NOW, 0.0))
    assert not any(record.phase is Phase.WARM for record in gone.records.values())
    assert found.plugin.report is not None
    assert found.plugin.report.reported_at == NEVER


def test_a_released_prefix_that_goes_is_nobodys_loss() -> None:
    record = soft()
    released = replace(record, placement=record.placement.model_copy(update={"release": "Keep"}))
    for phase in (Phase.WARM, Phase.RELEASED):
        before = replace(released, phase=phase, released=OnIdle.KEEP)
        _, found = after(before, LOST)
        assert (found.phase, found.soft_evictions) == (phase, 0)
        assert found.copied_tokens == 32
    assert found.resident_tokens == 16


def test_of_a_released_prefix_the_plugin_tells_if_it_can() -> None:
    released = replace(soft(), phase=Phase.RELEASED, released=OnIdle.KEEP)
    _, found = after(snapshot(released, found=report()), LOST)
    assert found.resident_tokens == 32
    _, found = after(released, UNKNOWN)
    assert found.resident_tokens == 32


def test_residency_follows_a_prefill_and_what_is_known_changes_nothing() -> None:
    waiting = replace(prepared(pinning=Pinning.SOFT), phase=Phase.WARMING)
    _, record = after(waiting, Residency(Standing.UNKNOWN, 16))
    assert (record.phase, record.resident_tokens) == (Phase.WARMING, 16)
    same, _ = after(snapshot(record), Residency(Standing.UNKNOWN, 16), news=False)
    assert same.records["a"] is record
    assert record.touch_at == FOREVER


def test_a_record_without_tokens_is_left_alone() -> None:
    known = snapshot(replace(prepared(), head=None))
    assert after(known, LOST)[0] is known
    assert with_residencies(known, {"gone": LOST}, ["gone"], NOW, PACE) is known
