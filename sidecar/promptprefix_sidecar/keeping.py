"""What the keep lane has to do: which pins are renewed, and which go and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.actions import Due, Evict, KeepAction, Policy, Renew, Report, Unpin
from promptprefix_sidecar.pins import SeenPin, owner_of, pin_owner
from promptprefix_sidecar.release import evictable
from promptprefix_sidecar.snapshot import PluginStatus, PluginView, Record, Snapshot

RENEW_AT = 2 / 3
"""A lease is renewed when this share of it is left."""
RENEW_AGAIN_AFTER = 1 / 12
"""Of a lease: a renewal without an answer lets other commands go first for so long."""


def keep_dues(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[Due[KeepAction]]:
    """Yield what is asked of the plugin."""
    plugin = snapshot.plugin
    if plugin.status in (PluginStatus.UNKNOWN, PluginStatus.REFUSING):
        yield Due(plugin.ask_at, Report())
        return
    if plugin.report is None:
        return
    unwanted = frozenset(unwanted_pins(snapshot))
    priorities = {pin_owner(r.id): r.placement.priority for r in snapshot.records.values()}
    renewals = {
        pin.view.id: _renew_at(pin, _priority(pin, priorities), policy)
        for pin in plugin.report.pins.values()
        if pin.view.id not in unwanted
    }
    if renewals:
        first = min(renewals.values())
        due = [pin_id for pin_id, at in renewals.items() if at <= max(first, now)]
        pins = tuple((pin_id, _priority(plugin.report.pins[pin_id], priorities)) for pin_id in due)
        yield Due(max(first, plugin.ask_at), Renew(pins))
    yield from (Due(plugin.ask_at, action) for action in _partings(snapshot, unwanted))
    interval = policy.report_interval_s
    if not snapshot.records and not plugin.report.pins:
        interval = max(interval, policy.lease_s / 3)
    yield Due(max(plugin.report.reported_at + interval, plugin.ask_at), Report())


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
        pin_id
        for pin_id, pin in report.pins.items()
        if _unwanted(pin, owners.get(owner_of(pin_id)), snapshot.plugin)
    )


def _unwanted(pin: SeenPin, record: Record | None, plugin: PluginView) -> bool:
    if record is None or record.stale:
        return True
    if not record.held:
        # What is offloaded keeps its pin until the tier is asked for it.
        offloading = record.wanted and record.placement.release is OnIdle.OFFLOAD
        return not (offloading and evictable(record, plugin))
    if record.phase is Phase.WARM:
        return pin.view.id != record.pin_id or record.placement.pinning is not Pinning.HARD
    if record.placement.retained:
        return not pin.view.whole
    return record.phase is Phase.FAILED and record.settled


def _partings(snapshot: Snapshot, unwanted: Collection[str]) -> Iterator[KeepAction]:
    """Yield how pins and what is left of them go."""
    plugin = snapshot.plugin
    evicts = plugin.report is not None and plugin.report.evicts
    parting: set[str] = set()
    for record in snapshot.records.values():
        if record.placement.release is OnIdle.EVICT:
            for pin_id in evictable(record, plugin):
                parting.add(pin_id)
                yield Evict(record.id, pin_id)
    stale = {pin_owner(record.id) for record in snapshot.records.values() if record.stale}
    for pin_id in unwanted:
        if pin_id not in parting:
            evict = evicts and owner_of(pin_id) in stale
            yield Evict("", pin_id) if evict else Unpin(pin_id)


def _renew_at(pin: SeenPin, priority: int, policy: Policy) -> float:
    at = pin.seen_at
    if pin.view.priority == priority and not pin.doubted:
        at += pin.view.lease_left_s - policy.lease_s * RENEW_AT
    return max(at, pin.unanswered_at + policy.lease_s * RENEW_AGAIN_AFTER)


def _priority(pin: SeenPin, priorities: Mapping[str, int]) -> int:
    """Return the priority that a pin should have, by the owners of what is wanted."""
    return priorities.get(owner_of(pin.view.id), pin.view.priority)
