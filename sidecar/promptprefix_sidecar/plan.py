"""What to do next: pure decisions from a snapshot and the clock.

Three lanes act side by side. *Keep* holds pins (report, renew, unpin), short and on time; *touch*
holds soft pins, whose requests wait their turn in a busy engine; *warm* brings what is missing
(prepare, warm), long and one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.pins import SeenPin, owner_of, pin_owner
from promptprefix_sidecar.snapshot import FOREVER, PluginStatus, Record, Snapshot

RENEW_AT = 2 / 3
"""A lease is renewed when this share of it is left."""


@dataclass(frozen=True)
class Policy:
    """Intervals in seconds. Requests of users go first for at most ``soft_wait_s``."""

    lease_s: int = 120
    report_interval_s: float = 10.0
    touch_interval_s: float = 30.0
    digest_check_interval_s: float = 300.0
    soft_wait_s: float = 30.0


@dataclass(frozen=True)
class Report:
    """Ask the plugin for its epoch and all pins."""


@dataclass(frozen=True)
class Renew:
    """Renew the leases of these pins; each with the priority that is wanted."""

    pins: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Unpin:
    """Give up a pin that no wanted placement needs."""

    pin_id: str


@dataclass(frozen=True)
class Touch:
    """Use a soft pin, so that it is recent, and see whether it was still there."""

    id: str


@dataclass(frozen=True)
class Prepare:
    """Find the tokens of a placement, for the first time or again."""

    id: str


@dataclass(frozen=True)
class Warm:
    """Prefill a placement and prove that it is resident; with a pin if ``hard``."""

    id: str
    hard: bool


KeepAction = Report | Renew | Unpin
WarmAction = Prepare | Warm
A = TypeVar("A", KeepAction, Touch, WarmAction)


@dataclass(frozen=True)
class Plan:
    """The next action of each lane. Without one there is nothing to do before ``wake_at``."""

    keep: KeepAction | None
    touch: Touch | None
    warm: WarmAction | None
    wake_at: float


@dataclass(frozen=True)
class _Due(Generic[A]):
    """An action and the time from which it may run; the earliest in the list goes first."""

    at: float
    action: A


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """Return what to do at ``now`` (monotonic seconds)."""
    if not snapshot.engine.healthy:
        return Plan(None, None, None, FOREVER)
    keep = tuple(_plugin_dues(snapshot, policy, now))
    touch = tuple(_touches(snapshot, policy))
    known = snapshot.plugin.status is not PluginStatus.UNKNOWN
    warm = tuple(_warm_ups(snapshot, policy)) if known else ()
    times = (*_times(keep), *_times(touch), *_times(warm))
    wake_at = min((at for at in times if at > now), default=FOREVER)
    return Plan(_first(keep, now), _first(touch, now), _first(warm, now), wake_at)


def _times(dues: Sequence[_Due[A]]) -> Iterator[float]:
    return (due.at for due in dues)


def _first(dues: Sequence[_Due[A]], now: float) -> A | None:
    return next((due.action for due in dues if due.at <= now), None)


def _plugin_dues(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[_Due[KeepAction]]:
    plugin = snapshot.plugin
    if plugin.status in (PluginStatus.UNKNOWN, PluginStatus.REFUSING):
        yield _Due(plugin.ask_at, Report())
        return
    if plugin.report is None:
        return
    unwanted = unwanted_pins(snapshot)
    renewals = {
        pin.view.id: _renew_at(snapshot, pin, policy)
        for pin in plugin.report.pins.values()
        if pin.view.id not in unwanted
    }
    if renewals:
        first = min(renewals.values())
        due = [pin_id for pin_id, at in renewals.items() if at <= max(first, now)]
        pins = tuple((pin_id, _priority(snapshot, pin_id)) for pin_id in due)
        yield _Due(max(first, plugin.ask_at), Renew(pins))
    yield from (_Due(plugin.ask_at, Unpin(pin_id)) for pin_id in unwanted)
    interval = policy.report_interval_s
    if not snapshot.records and not plugin.report.pins:
        interval = max(interval, policy.lease_s / 3)
    yield _Due(max(plugin.report.reported_at + interval, plugin.ask_at), Report())


def unwanted_pins(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the ids of pins that may go.

    Not before the operator has said what it wants; and the pins of a placement that isn't warm yet
    stay: they may be its own from before a restart of this process, or an older text that is
    served until the new one is warm.
    """
    report = snapshot.plugin.report
    if report is None or not snapshot.desired_known:
        return ()
    owners = {pin_owner(record.id): record for record in snapshot.records.values()}
    return tuple(
        pin_id for pin_id in report.pins if _unwanted(pin_id, owners.get(owner_of(pin_id)))
    )


def _unwanted(pin_id: str, record: Record | None) -> bool:
    if record is None or not record.wanted:
        return True
    if record.phase is Phase.WARM:
        return pin_id != record.pin_id or record.placement.pinning is not Pinning.HARD
    return record.phase is Phase.FAILED and record.settled


def _renew_at(snapshot: Snapshot, pin: SeenPin, policy: Policy) -> float:
    if pin.view.priority != _priority(snapshot, pin.view.id):
        return pin.seen_at
    return pin.seen_at + pin.view.lease_left_s - policy.lease_s * RENEW_AT


def _priority(snapshot: Snapshot, pin_id: str) -> int:
    owner = owner_of(pin_id)
    for record in snapshot.records.values():
        if pin_owner(record.id) == owner:
            return record.placement.priority
    report = snapshot.plugin.report
    seen = None if report is None else report.pins.get(pin_id)
    return 0 if seen is None else seen.view.priority


def _touches(snapshot: Snapshot, policy: Policy) -> Iterator[_Due[Touch]]:
    for record in snapshot.records.values():
        if record.wanted and record.phase is Phase.WARM and record.pinned is Pinning.SOFT:
            at = record.touch_at
            # A prefix that is still there costs one token; one that is gone costs a prefill.
            delay = 2 * policy.touch_interval_s if snapshot.engine.waiting else 0.0
            yield _Due(at + delay, Touch(record.id))


def _warm_ups(snapshot: Snapshot, policy: Policy) -> Iterator[_Due[WarmAction]]:
    """Yield missing prefixes first, by priority; then better pins and checks of warm ones."""
    wanted = [record for record in snapshot.records.values() if record.wanted]
    wanted.sort(key=lambda record: -record.placement.priority)
    for record in wanted:
        if record.phase is not Phase.WARM and not record.settled:
            yield _missing(snapshot, policy, record)
    for record in wanted:
        if record.phase is Phase.WARM:
            if _wants_hard(snapshot, record):
                yield _Due(_pin_at(snapshot, record), Warm(record.id, hard=True))
            yield _Due(record.recheck_at, Prepare(record.id))
        elif record.settled:
            yield _Due(record.recheck_at, Prepare(record.id))


def _missing(snapshot: Snapshot, policy: Policy, record: Record) -> _Due[WarmAction]:
    if record.head is None:
        return _Due(record.retry_at, Prepare(record.id))
    if _wants_hard(snapshot, record) and _pin_at(snapshot, record) <= record.retry_at:
        return _Due(record.retry_at, Warm(record.id, hard=True))
    delay = policy.soft_wait_s if snapshot.engine.waiting else 0.0
    return _Due(max(record.retry_at, record.waiting_since + delay), Warm(record.id, hard=False))


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
