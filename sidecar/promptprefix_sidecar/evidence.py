"""What the pin plugin tells of its pins, and what follows from it for the placements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.clock import Moment
from promptprefix_sidecar.engine_change import forget_engine
from promptprefix_sidecar.lifecycle import Failure, complete, pending, pin_refused, warmed
from promptprefix_sidecar.pins import ORDERED, PinReason, PinReport, SeenPin, pin_owner
from promptprefix_sidecar.plugin_status import REFUSED_RETRY_S
from promptprefix_sidecar.settling import settle
from promptprefix_sidecar.snapshot import FOREVER, PluginStatus, PluginView, Record, Snapshot

SAME_MATCH_S = 1.0
"""Ages are rounded and read a little later each time: a match must be newer by this much."""


def with_report(snapshot: Snapshot, report: PinReport, moment: Moment) -> Snapshot:
    """Take over a whole report: pins that are gone or dead are to be warmed again."""
    if snapshot.engine.asleep:
        return snapshot
    old = snapshot.plugin.report
    if old is not None and old.epoch != report.epoch:
        snapshot = forget_engine(snapshot)
    elif old is not None:
        report = report.with_doubts_of(old)
    snapshot = _after_reset(snapshot, report)
    plugin = PluginView(PluginStatus.WORKING, report=report)
    records = {
        record.id: record if _newer(record, report) else _with_evidence(record, report, moment)
        for record in snapshot.records.values()
    }
    return settle(replace(snapshot, plugin=plugin, records=records))


def _newer(record: Record, report: PinReport) -> bool:
    """Return whether the report may have been made before the record's pin was."""
    seen = report.pins.get(record.pin_id)
    return record.pin_attempt_at >= report.asked_at and (seen is None or not seen.view.whole)


def with_answer(
    snapshot: Snapshot, pin_id: str, merge: Callable[[PinReport], PinReport], moment: Moment
) -> Snapshot:
    """Take over the answer to a command about one pin."""
    report = snapshot.plugin.report
    if report is None:
        return snapshot
    report = merge(report)
    snapshot = _after_reset(snapshot, report)
    records = {
        record.id: _with_evidence(record, report, moment) if record.pin_id == pin_id else record
        for record in snapshot.records.values()
    }
    plugin = replace(snapshot.plugin, report=report)
    return settle(replace(snapshot, plugin=plugin, records=records))


def _after_reset(snapshot: Snapshot, report: PinReport) -> Snapshot:
    """A reset of the cache took what was never pinned too."""
    old = snapshot.plugin.report
    if old is None or old.pin_epoch == report.pin_epoch:
        return snapshot
    records = {
        record.id: pending(record)
        if record.phase is Phase.WARM and record.pinned is not Pinning.HARD
        else record
        for record in snapshot.records.values()
    }
    return replace(snapshot, records=records)


def _with_evidence(record: Record, report: PinReport, moment: Moment) -> Record:
    record = _with_match(record, report, moment)
    if record.stale:
        return record
    if record.phase is Phase.RELEASED:
        return _released(record, report)
    if record.placement.retained and record.head is None:
        return record
    seen = report.pins.get(record.pin_id)
    if record.pinned is not Pinning.HARD:
        return _found_pinned(_still_cached(record, report), seen)
    if seen is None:
        return _lost(record, report.released.get(record.pin_id, ""), moment.now)
    if not seen.view.whole:
        return replace(pending(record), hard_evictions=record.hard_evictions + 1)
    return replace(
        record,
        resident_tokens=seen.view.resident_tokens,
        pinned_tokens=seen.view.pinned_tokens,
    )


def _with_match(record: Record, report: PinReport, moment: Moment) -> Record:
    """Take over the latest request of a user, whatever tokens it matched."""
    owner = pin_owner(record.id)
    pins = (report.pins[each] for each in report.pins_of.get(owner, ()))
    watched = (report.watched or {}).get
    times = [
        *((pin.seen_at, pin.view.used_age_s) for pin in pins),
        *(
            (report.reported_at, view.last_match_age_s)
            for each in report.watched_of.get(owner, ())
            if (view := watched(each)) is not None
        ),
    ]
    matched = [
        moment.wall - (moment.now - seen_at) - age for seen_at, age in times if age is not None
    ]
    latest = max(matched, default=None)
    if latest is None or (record.last_hit is not None and latest < record.last_hit + SAME_MATCH_S):
        return record
    return replace(record, last_hit=latest)


def _released(record: Record, report: PinReport) -> Record:
    watched = report.watched or {}
    ids = report.watched_of.get(pin_owner(record.id), ())
    resident = max((watched[each].resident_tokens for each in ids), default=0)
    return replace(record, resident_tokens=resident)


def _still_cached(record: Record, report: PinReport) -> Record:
    """An earlier text that nothing protects is warm until the engine has dropped some of it."""
    watch = (report.watched or {}).get(record.pin_id)
    kept = record.placement.retained and record.pinned is Pinning.NONE
    if watch is None or watch.whole or not kept or record.phase is not Phase.WARM:
        return record
    return pending(record)


def _found_pinned(record: Record, seen: SeenPin | None) -> Record:
    """A pin whose answer was lost, or that outlived a doubt, is held all the same."""
    asked = record.placement.pinning is Pinning.HARD and record.held
    asked = asked and record.phase in (Phase.WARM, Phase.PENDING)
    if seen is None or record.head is None or not asked or not complete(seen.view, record.head):
        return record
    return warmed(record, Pinning.HARD, record.warm_seconds or 0.0, FOREVER)


def _lost(record: Record, reason: str, now: float) -> Record:
    evictions = record.hard_evictions + (reason not in ORDERED)
    lost = replace(pending(record), hard_evictions=evictions)
    if reason != PinReason.PRESSURE_VALVE:
        return lost
    message = (
        "the engine gave up the pin because it could make no progress beside it: it is kept "
        "recent instead; give the engine more KV blocks or pin less"
    )
    return pin_refused(lost, Failure(reason, message), now, first=REFUSED_RETRY_S)
