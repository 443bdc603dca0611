"""What follows from every change: records that are done with go or come to rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from promptprefix.reasons import Reason
from promptprefix.wire import Phase
from promptprefix_sidecar.lifecycle import Failure, failed, outdated
from promptprefix_sidecar.pins import pin_owner
from promptprefix_sidecar.release import concluded
from promptprefix_sidecar.retention import as_found
from promptprefix_sidecar.snapshot import (
    FOREVER,
    NEVER,
    EngineView,
    PluginStatus,
    Record,
    Snapshot,
)


def change(snapshot: Snapshot, record_id: str, edit: Callable[[Record], Record]) -> Snapshot:
    """Edit one record, if it is still there."""
    record = snapshot.records.get(record_id)
    if record is None:
        return snapshot
    return settle(replace(snapshot, records={**snapshot.records, record_id: edit(record)}))


def settle(snapshot: Snapshot) -> Snapshot:
    """Drop what is no longer wanted, note what is released, and mark models not served."""
    records: dict[str, Record] = {}
    for record in snapshot.records.values():
        if record.wanted:
            records[record.id] = _at_rest(_with_model(record, snapshot.engine), snapshot)
        elif may_be_pinned(record, snapshot):
            records[record.id] = record
    if same(records, snapshot.records):
        return snapshot
    return replace(snapshot, records=records)


def same(one: Mapping[str, Record], other: Mapping[str, Record]) -> bool:
    """Return whether both hold the same record objects in the same order."""
    return list(one) == list(other) and all(one[key] is other[key] for key in one)


def _at_rest(record: Record, snapshot: Snapshot) -> Record:
    report = snapshot.plugin.report
    working = snapshot.plugin.status is PluginStatus.WORKING
    if working and report is not None and not record.stale and not snapshot.engine.asleep:
        record = as_found(record, report)
    if not (record.stale or record.releasing):
        return record
    pinned = may_be_pinned(record, snapshot)
    if record.stale and not pinned:
        record = replace(record, stale=False)
    if not snapshot.boot or snapshot.engine.asleep:
        return record
    return concluded(record, snapshot.plugin, pinned=pinned)


def may_be_pinned(record: Record, snapshot: Snapshot) -> bool:
    """Return whether the engine may hold a pin of the placement."""
    if record.pin_attempt_at == FOREVER:
        return True
    plugin = snapshot.plugin
    if plugin.status is PluginStatus.UNKNOWN:
        return snapshot.engine.boot != ""
    if plugin.status is not PluginStatus.WORKING or plugin.report is None:
        return False
    if record.pin_attempt_at >= plugin.report.asked_at:
        return True
    return pin_owner(record.id) in plugin.report.pins_of


def _with_model(record: Record, engine: EngineView) -> Record:
    """Mark a placement whose model the engine doesn't serve; one that came back is warmed anew."""
    unserved = record.reason == Reason.MODEL_NOT_SERVED
    if not engine.healthy or not engine.models:
        return record
    if record.placement.model in engine.models:
        return outdated(record) if unserved else record
    if unserved or record.phase is Phase.RELEASED:
        return record
    message = (
        f"the engine serves {', '.join(engine.models[:5])} and not {record.placement.model}: "
        "set spec.model to a served name"
    )
    failure = Failure(Reason.MODEL_NOT_SERVED, message, settled=True)
    return replace(failed(record, failure, NEVER), head=None, found=None, recheck_at=FOREVER)
