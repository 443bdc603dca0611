"""What becomes of a prefix that is not to be held just now: kept, evicted or offloaded."""

from __future__ import annotations

from dataclasses import replace

from promptprefix.reasons import Reason
from promptprefix.resource import OnIdle
from promptprefix.wire import Phase
from promptprefix_sidecar.lifecycle import backoff, pending
from promptprefix_sidecar.pins import PinReport, pin_owner
from promptprefix_sidecar.snapshot import FOREVER, NEVER, PluginStatus, PluginView, Record

MAX_TRIES = 4
UNKNOWN_TOKENS = (
    "its tokens are not known here since the sidecar started: they stay until their room is needed"
)
NO_TIER = (
    "the engine has no offload tier: start it with a KV connector that keeps copies outside GPU "
    "memory, or set spec.onIdle to Keep or Evict"
)
OLDER_PLUGIN = "the pin plugin is too old to evict: use the one of this version"


def done(record: Record, how: OnIdle, reason: str = "", message: str = "") -> Record:
    """It is released; ``reason`` says why not as asked. Its tokens stay known."""
    return replace(
        pending(record),
        phase=Phase.RELEASED,
        released=how,
        reason=reason,
        message=message,
        recheck_at=FOREVER,
        failures=0,
        retry_at=NEVER,
        pin_failures=0,
        pin_reason="",
        pin_message="",
        pin_retry_at=NEVER,
    )


def not_evictable(record: Record, message: str) -> Record:
    """It is released, but what is cached of it stays until its room is needed."""
    return done(record, OnIdle.KEEP, Reason.NOT_EVICTABLE, message)


def evicted(record: Record, pin_id: str) -> Record:
    """Its blocks under this pin were dropped, but those that other pins hold."""
    if not record.releasing:
        return record
    return replace(pending(record), evicted=record.evicted | {pin_id})


def not_offloaded(record: Record, tier: str) -> Record:
    """It is released, but the tier did not show that it holds a copy."""
    message = (
        f"the engine's offload tier {tier} did not give the evicted prefix back: it is kept in GPU "
        "memory until its room is needed; give the tier more room"
    )
    return done(record, OnIdle.KEEP, Reason.NO_OFFLOAD_TIER, message)


def delayed(record: Record, message: str, now: float) -> Record:
    """A step of the release failed: it is tried again, and given up after some tries."""
    if not record.releasing:
        return record
    failures = record.failures + 1
    if failures >= MAX_TRIES:
        return not_evictable(record, message)
    return replace(record, failures=failures, retry_at=now + backoff(failures))


def concluded(record: Record, plugin: PluginView, *, pinned: bool) -> Record:
    """Return the record as released if nothing is left to do for that, else as it is.

    ``pinned``: the engine may hold a pin of it.
    """
    how = record.placement.release
    if not record.releasing or how is None or pinned or plugin.status is PluginStatus.UNKNOWN:
        return record
    if how is OnIdle.KEEP:
        return done(record, OnIdle.KEEP)
    obstacle = _obstacle(record, plugin)
    if obstacle is not None:
        return done(record, OnIdle.KEEP, *obstacle)
    to_be_pinned = record.phase is Phase.WARM and record.head is not None
    if evictable(record, plugin) or to_be_pinned:
        return record
    if how is OnIdle.OFFLOAD and record.evicted:
        return record  # only a look at the tier ends it
    if record.head is None and not record.evicted:
        return not_evictable(record, UNKNOWN_TOKENS)
    return done(record, how)


def _obstacle(record: Record, plugin: PluginView) -> tuple[Reason, str] | None:
    """Return why it can only be kept."""
    report = plugin.report
    if plugin.status is not PluginStatus.WORKING or report is None:
        return Reason.NOT_EVICTABLE, plugin.soft_reason
    if not report.evicts:
        return Reason.NOT_EVICTABLE, OLDER_PLUGIN
    if record.placement.release is OnIdle.OFFLOAD and not report.offload_tier:
        return Reason.NO_OFFLOAD_TIER, NO_TIER
    if record.phase is Phase.WARM and record.pin_reason:
        return Reason.NOT_EVICTABLE, record.pin_message
    return None


def can_evict(record: Record, plugin: PluginView) -> bool:
    """Return whether a record that is being released ends with an eviction."""
    evicts = record.placement.release in (OnIdle.EVICT, OnIdle.OFFLOAD)
    return record.releasing and evicts and _obstacle(record, plugin) is None


def evictable(record: Record, plugin: PluginView) -> tuple[str, ...]:
    """Return the ids under which the plugin can drop what it has of a record being released."""
    report = plugin.report
    if report is None or not can_evict(record, plugin):
        return ()
    return tuple(each for each in _known(record, report) if each not in record.evicted)


def _known(record: Record, report: PinReport) -> tuple[str, ...]:
    owner = pin_owner(record.id)
    watched = report.watched or {}
    resident = (e for e in report.watched_of.get(owner, ()) if watched[e].resident_tokens)
    return (*report.pins_of.get(owner, ()), *resident)
