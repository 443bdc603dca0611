"""What the operator wants becomes what the sidecar works towards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from promptprefix.resource import Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.lifecycle import pending
from promptprefix_sidecar.settling import settle
from promptprefix_sidecar.snapshot import FOREVER, NEVER, Record, Snapshot


def with_desired(snapshot: Snapshot, placements: Sequence[Placement]) -> Snapshot:
    """Take over the whole desired set. What is no longer wanted stays until its pin is gone."""
    records: dict[str, Record] = {}
    for placement in placements:
        records[placement.id] = _wanted(snapshot.records.get(placement.id), placement)
    for record in snapshot.records.values():
        if record.id not in records:
            records[record.id] = replace(record, wanted=False)
    return settle(replace(snapshot, desired_known=True, let_go=False, records=records))


def _wanted(old: Record | None, placement: Placement) -> Record:
    if old is not None and placement.retained:
        # An id has one model for good; an operator that has just started may not know which.
        placement = placement.model_copy(update={"model": old.placement.model})
    if old is None or _text(old.placement) != _text(placement):
        return Record(placement)
    if old.placement.salted:
        # An id has one salt for good; an operator that has just started may not know that it has.
        placement = placement.model_copy(update={"salted": True})
    record = replace(old, placement=placement, wanted=True)
    if placement.release is not old.placement.release:
        record = _with_release(record)
    if old.placement.retained and not placement.retained and record.head is None:
        # Its tokens were not asked for as long as it was only kept; what is pinned stays warm.
        record = replace(record, recheck_at=NEVER)
    if old.placement.pinning is not placement.pinning:
        record = _with_pinning(record)
    return record


def _with_release(record: Record) -> Record:
    """Begin to release a prefix or to hold it again; one that is still warm goes on as it is."""
    if record.placement.release is not None:
        return replace(
            record,
            released=None,
            evicted=frozenset(),
            failures=0,
            retry_at=NEVER,
            pin_failures=0,
            pin_reason="",
            pin_message="",
            pin_retry_at=NEVER,
        )
    if record.phase is Phase.WARM:
        return record
    # Its tokens may have changed since it was released.
    return replace(pending(record), failures=0, retry_at=NEVER, recheck_at=NEVER)


def _with_pinning(record: Record) -> Record:
    """Another pinning. A pin is had without computing what is there; a lesser one is proved."""
    if record.placement.release is not None or record.phase is not Phase.WARM:
        return record
    wanted = record.placement.pinning
    if wanted is Pinning.HARD:
        return record
    if record.placement.retained:
        touch_at = NEVER if wanted is Pinning.SOFT else FOREVER
        return replace(record, pinned=wanted, pinned_tokens=0, touch_at=touch_at)
    return pending(record)


def _text(placement: Placement) -> tuple[str, str]:
    return (placement.model, placement.content_digest)
