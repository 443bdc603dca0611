"""What the events change in what the sidecar knows: pure functions from a snapshot to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.kv_events.index import Residency, Standing
from promptprefix_sidecar.lifecycle import backoff, rewarmed
from promptprefix_sidecar.settling import same, settle
from promptprefix_sidecar.snapshot import NEVER, PluginStatus, Record, Snapshot

FIRST_PACE_S = 30.0
MAX_PACE_S = 300.0
"""A soft pin's losses are told by events; however rarely it is touched, these bound its pauses."""
MAX_DOUBTS = 8
CALM_S = 2 * MAX_PACE_S
"""A loss that comes later than this after the last one is a first one again."""


def with_residencies(
    snapshot: Snapshot,
    found: Mapping[str, Residency],
    changed: Collection[str],
    now: float,
    pace_s: float,
) -> Snapshot:
    """Take over what the events prove, by ids of records; ``changed`` are those with news.

    A loss acts once, when it happens: a warm-up or touch after it is newer evidence. A prefix
    without a pin that is gone is warmed again, but not more often than every ``pace_s``. One with
    a soft pin is warmed at once the first time, then after a pause and twice as long each time:
    prefixes that evict each other must not keep the engine busy.
    """
    records = dict(snapshot.records)
    doubted: set[str] = set()
    told = snapshot.plugin.status is PluginStatus.WORKING
    for record_id, residency in found.items():
        record = records.get(record_id)
        if record is None or record.head is None:
            continue
        if record_id in changed and _in_danger(record, residency):
            if record.pinned is Pinning.HARD:
                doubted.add(record.pin_id)
            else:
                record = _shaken(record, residency, now, pace_s)
        records[record_id] = _known(record, residency, told=told)
    if doubted:
        snapshot = _with_doubts(snapshot, doubted)
    if same(records, snapshot.records):
        return snapshot
    return settle(replace(snapshot, records=records))


def _in_danger(record: Record, residency: Residency) -> bool:
    gone = residency.standing in (Standing.LOST, Standing.DOUBTFUL)
    return gone and record.held and record.phase is Phase.WARM


def _shaken(record: Record, residency: Residency, now: float, pace_s: float) -> Record:
    """A block of a prefix went that nothing held."""
    if record.pinned is Pinning.NONE:
        return rewarmed(record, now, now + pace_s)
    losses = record.losses if now < record.lost_at + CALM_S else 0
    pace_s = min(pace_s, FIRST_PACE_S)
    at = now + (backoff(losses, pace_s, MAX_PACE_S) if losses else 0.0)
    lost = replace(record, losses=losses + 1, lost_at=now)
    if residency.standing is Standing.LOST:
        return replace(rewarmed(lost, now, at), soft_evictions=record.soft_evictions + 1)
    # There may be another copy: a touch tells, and costs one token if so, a prefill if not.
    return replace(lost, touch_at=at) if at < record.touch_at else record


def _known(record: Record, residency: Residency, *, told: bool) -> Record:
    """Take over what is cached. ``told``: the plugin tells it of released prefixes."""
    whole = residency.standing is Standing.RESIDENT
    resident = record.resident_tokens
    if record.phase is Phase.RELEASED:
        if not told and residency.standing is not Standing.UNKNOWN:
            resident = residency.tokens
    elif whole:
        resident = record.tokens
    elif record.phase is not Phase.WARM:
        resident = residency.tokens
    unproved = record.phase is Phase.WARM and record.pinned is Pinning.SOFT and not whole
    known = (resident, unproved, residency.copied)
    if known == (record.resident_tokens, record.unproved, record.copied_tokens):
        return record
    return replace(
        record, resident_tokens=resident, unproved=unproved, copied_tokens=residency.copied
    )


def _with_doubts(snapshot: Snapshot, pin_ids: Collection[str]) -> Snapshot:
    """Hard pins are the plugin's to know: ask it now rather than at the next interval.

    A few are asked about one by one. Many at once were given up, which one report tells of all.
    """
    report = snapshot.plugin.report
    if report is None:
        return snapshot
    single = [pin_id for pin_id in pin_ids if pin_id in report.pins][:MAX_DOUBTS]
    for pin_id in single:
        report = report.doubt(pin_id)
    if len(single) < len(pin_ids):
        report = replace(report, reported_at=NEVER)
    return replace(snapshot, plugin=replace(snapshot.plugin, report=report))
