"""How what happened changes what is known: pure functions from a snapshot to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from promptprefix.reasons import Reason
from promptprefix.resource import Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.pins import (
    PinReason,
    PinReport,
    PinView,
    SeenPin,
    owner_of,
    pin_owner,
)
from promptprefix_sidecar.snapshot import (
    FOREVER,
    NEVER,
    EngineView,
    PluginStatus,
    PluginView,
    Record,
    Snapshot,
)

MAX_BACKOFF_S = 60.0
PIN_BACKOFF_S = 5.0
MAX_PIN_BACKOFF_S = 600.0
PLUGIN_RETRY_S = 1.0
REFUSED_RETRY_S = 60.0


@dataclass(frozen=True)
class Moment:
    """One reading of both clocks: ``now`` in monotonic seconds, ``wall`` in Unix seconds."""

    now: float
    wall: float


@dataclass(frozen=True)
class Failure:
    """Why something did not work. A ``settled`` failure stays until the text or engine changes."""

    reason: str
    message: str
    settled: bool = False


def backoff(failures: int, first: float = 1.0, limit: float = MAX_BACKOFF_S) -> float:
    """Return the seconds to wait after this many failures in a row."""
    return float(min(limit, first * 2 ** min(failures - 1, 16)))


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
    if old is None or _text(old.placement) != _text(placement):
        return Record(placement)
    record = replace(old, placement=placement, wanted=True)
    if old.placement.pinning is placement.pinning:
        return record
    return pending(record)


def _text(placement: Placement) -> tuple[str, str]:
    return (placement.model, placement.content_digest)


def pending(record: Record) -> Record:
    """Return the record to be warmed again: nothing is known of its blocks, its tokens stay."""
    return replace(
        record,
        phase=Phase.PENDING,
        reason="",
        message="",
        pinned=Pinning.NONE,
        resident_tokens=0,
        pinned_tokens=0,
        settled=False,
        touch_at=FOREVER,
    )


def with_engine(snapshot: Snapshot, view: EngineView) -> Snapshot:
    """Take over a look at the engine. Another boot has nothing of what the last one held."""
    snapshot = replace(snapshot, engine=view)
    if view.boot != snapshot.boot:
        snapshot = forget_engine(replace(snapshot, boot=view.boot))
    return settle(snapshot)


def forget_engine(snapshot: Snapshot) -> Snapshot:
    """Everything is to be done again, from the tokens on."""
    records = {
        record.id: Record(
            record.placement,
            hard_evictions=record.hard_evictions,
            soft_evictions=record.soft_evictions,
        )
        for record in snapshot.records.values()
        if record.wanted
    }
    return replace(snapshot, plugin=PluginView(), records=records)


def with_report(snapshot: Snapshot, report: PinReport, moment: Moment) -> Snapshot:
    """Take over a whole report: pins that are gone or dead are to be warmed again."""
    old = snapshot.plugin.report
    if old is not None and old.epoch != report.epoch:
        snapshot = forget_engine(snapshot)
    plugin = PluginView(PluginStatus.WORKING, report=report)
    records = {
        record.id: record if _newer(record, report) else _with_evidence(record, report, moment)
        for record in snapshot.records.values()
    }
    return settle(replace(snapshot, plugin=plugin, records=records))


def _newer(record: Record, report: PinReport) -> bool:
    """Return whether the report may have been made before the record's pin was."""
    return record.pin_attempt_at >= report.asked_at and record.pin_id not in report.pins


def with_answer(
    snapshot: Snapshot, pin_id: str, merge: Callable[[PinReport], PinReport], moment: Moment
) -> Snapshot:
    """Take over the answer to a command about one pin."""
    report = snapshot.plugin.report
    if report is None:
        return snapshot
    report = merge(report)
    records = {
        record.id: _with_evidence(record, report, moment) if record.pin_id == pin_id else record
        for record in snapshot.records.values()
    }
    plugin = replace(snapshot.plugin, report=report)
    return settle(replace(snapshot, plugin=plugin, records=records))


def _with_evidence(record: Record, report: PinReport, moment: Moment) -> Record:
    seen = report.pins.get(record.pin_id)
    if seen is not None:
        record = _with_hits(record, seen, moment)
    if record.pinned is not Pinning.HARD:
        return _found_pinned(record, seen)
    if seen is None:
        return _lost(record, report.released.get(record.pin_id, ""), moment.now)
    if not seen.view.whole:
        return replace(pending(record), hard_evictions=record.hard_evictions + 1)
    return replace(
        record,
        resident_tokens=seen.view.resident_tokens,
        pinned_tokens=seen.view.pinned_tokens,
    )


def _found_pinned(record: Record, seen: SeenPin | None) -> Record:
    """A pin whose answer was lost is held all the same."""
    asked = record.placement.pinning is Pinning.HARD and record.phase is Phase.WARM
    if seen is None or record.head is None or not asked or not complete(seen.view, record.head):
        return record
    return warmed(record, Pinning.HARD, 0.0, FOREVER)


def _with_hits(record: Record, seen: SeenPin, moment: Moment) -> Record:
    if seen.view.last_hit_age_s is None:
        return record
    wall_seen = moment.wall - (moment.now - seen.seen_at)
    return replace(record, last_hit=wall_seen - seen.view.last_hit_age_s)


def _lost(record: Record, reason: str, now: float) -> Record:
    evictions = record.hard_evictions + (reason != PinReason.UNPINNED)
    lost = replace(pending(record), hard_evictions=evictions)
    if reason != PinReason.PRESSURE_VALVE:
        return lost
    message = (
        "the engine gave up the pin because it could make no progress beside it: it is kept "
        "recent instead; give the engine more KV blocks or pin less"
    )
    return _pin_later(lost, Failure(reason, message), now, first=REFUSED_RETRY_S)


def plugin_absent(snapshot: Snapshot, soft_reason: str) -> Snapshot:
    """Take note that the engine answers without the plugin."""
    return _soften(snapshot, PluginView(PluginStatus.ABSENT, soft_reason), NEVER)


def plugin_refusing(snapshot: Snapshot, soft_reason: str, now: float) -> Snapshot:
    """Take note that the plugin takes no command of ours."""
    view = PluginView(PluginStatus.REFUSING, soft_reason, ask_at=now + REFUSED_RETRY_S)
    return _soften(snapshot, view, now)


def _soften(snapshot: Snapshot, plugin: PluginView, touch_at: float) -> Snapshot:
    records = {
        record.id: replace(record, pinned=Pinning.SOFT, pinned_tokens=0, touch_at=touch_at)
        if record.pinned is Pinning.HARD
        else record
        for record in snapshot.records.values()
    }
    return settle(replace(snapshot, plugin=plugin, records=records))


def plugin_silent(snapshot: Snapshot, now: float) -> Snapshot:
    """Take note that a command was not answered; nothing known is lost by it."""
    plugin = replace(snapshot.plugin, ask_at=now + PLUGIN_RETRY_S)
    return replace(snapshot, plugin=plugin)


def plugin_unknown(snapshot: Snapshot) -> Snapshot:
    """Take note that the plugin has another epoch than we know: its next report tells."""
    plugin = replace(snapshot.plugin, status=PluginStatus.UNKNOWN, ask_at=NEVER)
    return replace(snapshot, plugin=plugin)


def change(snapshot: Snapshot, record_id: str, edit: Callable[[Record], Record]) -> Snapshot:
    """Edit one record, if it is still there."""
    record = snapshot.records.get(record_id)
    if record is None:
        return snapshot
    return settle(replace(snapshot, records={**snapshot.records, record_id: edit(record)}))


def began(record: Record) -> Record:
    """A missing prefix is being worked on; a mere check changes nothing."""
    if record.phase is Phase.WARM or record.settled:
        return record
    return replace(record, phase=Phase.WARMING)


def prepared(record: Record, head: Head, now: float, recheck_at: float) -> Record:
    """The tokens are known. Other tokens than before are warmed before the old pin goes."""
    record = replace(record, recheck_at=recheck_at)
    if record.head == head and record.phase is Phase.WARM:
        return record
    return replace(
        pending(record),
        head=head,
        failures=0,
        retry_at=NEVER,
        waiting_since=now,
        pin_failures=0,
        pin_reason="",
        pin_message="",
        pin_retry_at=NEVER,
    )


def prepare_failed(record: Record, failure: Failure, now: float, recheck_at: float) -> Record:
    """The tokens can't be had. A warm prefix stays warm: a failed check says nothing about it."""
    if record.phase is Phase.WARM and not failure.settled:
        return replace(record, recheck_at=recheck_at)
    return replace(failed(record, failure, now), head=None, recheck_at=recheck_at)


def failed(record: Record, failure: Failure, now: float) -> Record:
    """It is not warm, and is tried again later unless the failure is settled."""
    failures = record.failures + 1
    return replace(
        pending(record),
        phase=Phase.FAILED,
        reason=failure.reason,
        message=failure.message,
        settled=failure.settled,
        failures=failures,
        retry_at=now + backoff(failures),
    )


def warmed(record: Record, pinned: Pinning, seconds: float, touch_at: float) -> Record:
    """It is resident by the engine's own evidence. ``touch_at`` matters to a soft pin only."""
    assert record.head is not None  # noqa: S101 - only a prepared record is warmed
    hard = pinned is Pinning.HARD
    record = replace(
        record,
        phase=Phase.WARM,
        reason="",
        message="",
        pinned=pinned,
        resident_tokens=record.head.tokens,
        pinned_tokens=record.head.tokens if hard else 0,
        warm_seconds=seconds if record.phase is not Phase.WARM else record.warm_seconds,
        failures=0,
        settled=False,
        touch_at=touch_at if pinned is Pinning.SOFT else FOREVER,
    )
    if hard:
        return replace(record, pin_failures=0, pin_reason="", pin_message="")
    return record


def pin_refused(record: Record, failure: Failure, now: float) -> Record:
    """The pin can't be had now: the prefix is warmed without, and the pin is tried again later."""
    return _pin_later(record, failure, now, first=PIN_BACKOFF_S)


def _pin_later(record: Record, failure: Failure, now: float, first: float) -> Record:
    failures = record.pin_failures + 1
    return replace(
        record,
        pin_failures=failures,
        pin_reason=failure.reason,
        pin_message=failure.message,
        pin_retry_at=now + backoff(failures, first, MAX_PIN_BACKOFF_S),
        pin_force_at=now + MAX_PIN_BACKOFF_S,
    )


def touched(record: Record, cached_tokens: int | None, touch_at: float) -> Record:
    """A soft pin was used; ``cached_tokens`` of it were there, None if the engine doesn't say."""
    if record.head is None or record.phase is not Phase.WARM:
        return record
    if cached_tokens is None or cached_tokens >= record.head.tokens:
        return replace(record, touch_at=touch_at)
    return replace(pending(record), soft_evictions=record.soft_evictions + 1)


def settle(snapshot: Snapshot) -> Snapshot:
    """Drop what is released, and mark placements whose model the engine doesn't serve."""
    records: dict[str, Record] = {}
    for record in snapshot.records.values():
        if record.wanted:
            records[record.id] = _with_model(record, snapshot.engine)
        elif not _may_be_pinned(record, snapshot):
            continue
        else:
            records[record.id] = record
    if same(records, snapshot.records):
        return snapshot
    return replace(snapshot, records=records)


def same(one: Mapping[str, Record], other: Mapping[str, Record]) -> bool:
    """Return whether both hold the same record objects in the same order."""
    return list(one) == list(other) and all(one[key] is other[key] for key in one)


def _may_be_pinned(record: Record, snapshot: Snapshot) -> bool:
    if record.pin_attempt_at == FOREVER:
        return True
    plugin = snapshot.plugin
    if plugin.status is PluginStatus.UNKNOWN:
        return snapshot.engine.boot != ""
    if plugin.status is not PluginStatus.WORKING or plugin.report is None:
        return False
    if record.pin_attempt_at >= plugin.report.asked_at:
        return True
    owner = pin_owner(record.id)
    return any(owner_of(pin_id) == owner for pin_id in plugin.report.pins)


def _with_model(record: Record, engine: EngineView) -> Record:
    unserved = record.reason == Reason.MODEL_NOT_SERVED
    if not engine.healthy or not engine.models:
        return record
    if record.placement.model in engine.models:
        return Record(record.placement) if unserved else record
    if unserved:
        return record
    message = (
        f"the engine serves {', '.join(engine.models[:5])} and not {record.placement.model}: "
        "set spec.model to a served name"
    )
    failure = Failure(Reason.MODEL_NOT_SERVED, message, settled=True)
    return replace(failed(record, failure, NEVER), head=None, recheck_at=FOREVER)


def complete(view: PinView | None, head: Head) -> bool:
    """Return whether the engine's evidence covers the whole head."""
    return view is not None and view.whole and view.tokens == head.tokens
