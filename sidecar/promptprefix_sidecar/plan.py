"""What to do next: pure decisions from a snapshot and the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.actions import (
    A,
    Due,
    KeepAction,
    Offload,
    Policy,
    Prepare,
    Touch,
    Warm,
    WarmAction,
)
from promptprefix_sidecar.keeping import keep_dues
from promptprefix_sidecar.release import can_evict, evictable
from promptprefix_sidecar.snapshot import FOREVER, NEVER, PluginStatus, Record, Snapshot


@dataclass(frozen=True)
class Plan:
    """The next action of each lane. Without one there is nothing to do before ``wake_at``."""

    keep: KeepAction | None
    touch: Touch | None
    warm: WarmAction | None
    wake_at: float


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """Return what to do at ``now`` (monotonic seconds)."""
    if not snapshot.engine.healthy or snapshot.engine.asleep:
        return Plan(None, None, None, FOREVER)
    keep = tuple(keep_dues(snapshot, policy, now))
    touch = tuple(_touches(snapshot, policy))
    warm = tuple(_warm_ups(snapshot, policy)) if _plugin_known(snapshot) else ()
    times = (*_times(keep), *_times(touch), *_times(warm))
    wake_at = min((at for at in times if at > now), default=FOREVER)
    return Plan(_first(keep, now), _first(touch, now), _first(warm, now), wake_at)


def _times(dues: Sequence[Due[A]]) -> Iterator[float]:
    return (due.at for due in dues)


def _first(dues: Sequence[Due[A]], now: float) -> A | None:
    return next((due.action for due in dues if due.at <= now), None)


def _touches(snapshot: Snapshot, policy: Policy) -> Iterator[Due[Touch]]:
    for record in snapshot.records.values():
        soft = record.phase is Phase.WARM and record.pinned is Pinning.SOFT
        if record.held and soft and record.head is not None:
            at = record.touch_at
            # A prefix that is still there costs one token; one that is gone costs a prefill.
            delay = 2 * policy.touch_interval_s if snapshot.engine.waiting else 0.0
            yield Due(at + delay, Touch(record.id))


def _plugin_known(snapshot: Snapshot) -> bool:
    """Return whether the plugin has told what it holds since the cache may have changed."""
    report = snapshot.plugin.report
    asked = report is None or report.reported_at != NEVER
    return snapshot.plugin.status is not PluginStatus.UNKNOWN and asked


def _warm_ups(snapshot: Snapshot, policy: Policy) -> Iterator[Due[WarmAction]]:
    """Yield missing prefixes first, by priority; then better pins and checks of warm ones."""
    held = [r for r in snapshot.records.values() if r.held and not r.stale]
    # An earlier text stays as long as it is there, and is neither asked for nor computed again.
    held = [r for r in held if not r.placement.retained]
    held.sort(key=lambda record: -record.placement.priority)
    for record in held:
        if record.phase is not Phase.WARM and not record.settled:
            yield _missing(snapshot, policy, record)
    for record in held:
        if record.phase is Phase.WARM:
            if _wants_hard(snapshot, record) and record.head is not None:
                yield Due(_pin_at(snapshot, record), Warm(record.id, hard=True))
            yield Due(record.recheck_at, Prepare(record.id))
        elif record.settled:
            yield Due(record.recheck_at, Prepare(record.id))
    for record in snapshot.records.values():
        if record.releasing and can_evict(record, snapshot.plugin):
            yield from _releases(snapshot, record)
    for record in snapshot.records.values():
        if _unmeasured(snapshot, record):
            yield Due(record.retry_at, Prepare(record.id))


def _missing(snapshot: Snapshot, policy: Policy, record: Record) -> Due[WarmAction]:
    if record.head is None or record.recheck_at == NEVER:
        return Due(record.retry_at, Prepare(record.id))
    if _wants_hard(snapshot, record) and _pin_at(snapshot, record) <= record.retry_at:
        return Due(record.retry_at, Warm(record.id, hard=True))
    delay = policy.soft_wait_s if snapshot.engine.waiting else 0.0
    return Due(max(record.retry_at, record.waiting_since + delay), Warm(record.id, hard=False))


def _releases(snapshot: Snapshot, record: Record) -> Iterator[Due[WarmAction]]:
    """Yield what ends a release that a pin's end alone does not: only a pin can be evicted."""
    soft = record.phase is Phase.WARM and record.pinned is not Pinning.HARD
    if soft and record.head is not None and not evictable(record, snapshot.plugin):
        yield Due(NEVER, Warm(record.id, hard=True))
        return
    known = record.evicted or evictable(record, snapshot.plugin)
    if record.placement.release is OnIdle.OFFLOAD and known:
        action = Prepare(record.id) if record.head is None else Offload(record.id)
        yield Due(record.retry_at, action)


def _unmeasured(snapshot: Snapshot, record: Record) -> bool:
    """Return whether nobody has asked yet how many tokens a released prefix has."""
    served = record.placement.model in snapshot.engine.models
    resting = record.wanted and record.phase is Phase.RELEASED and not record.placement.retained
    return resting and record.head is None and served


def _wants_hard(snapshot: Snapshot, record: Record) -> bool:
    return (
        record.placement.pinning is Pinning.HARD
        and record.pinned is not Pinning.HARD
        and snapshot.plugin.status is PluginStatus.WORKING
    )


def _pin_at(snapshot: Snapshot, record: Record) -> float:
    """Return when a pin may be tried: later where the budget has visibly no room for it."""
    report = snapshot.plugin.report
    if not record.pin_failures or report is None or record.head is None:
        return record.pin_retry_at
    fits = report.budget_left * report.block_size >= record.head.tokens
    return record.pin_retry_at if fits else record.pin_force_at
