"""What is known of the pin plugin as a whole, and what that means for the pins."""

from __future__ import annotations

from dataclasses import replace

from promptprefix.resource import Pinning
from promptprefix_sidecar.pins import PinReport
from promptprefix_sidecar.settling import settle
from promptprefix_sidecar.snapshot import NEVER, PluginStatus, PluginView, Snapshot

PLUGIN_RETRY_S = 1.0
REFUSED_RETRY_S = 60.0
REPORT_PATIENCE_S = 30.0
"""A plugin whose reports fail for so long, twice at least, is taken for one that refuses."""


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


def report_failed(
    snapshot: Snapshot, cause: str, asked_at: float, now: float, lease_s: float
) -> Snapshot:
    """Take note that a report that was asked for at ``asked_at`` was not given.

    Without reports nothing would be warmed and nobody would hear why. A plugin that worked is
    trusted until all that it told is older than a lease: the pins have run out then.
    """
    plugin = snapshot.plugin
    text = (
        f"the pin plugin gives no report ({cause}): see the engine's log; it is asked each minute"
    )
    if plugin.status is PluginStatus.REFUSING:
        return plugin_refusing(snapshot, text, now)
    since = min(plugin.failing_since, asked_at)
    failures = plugin.unreported + 1
    silent = now - since >= REPORT_PATIENCE_S and failures > 1
    if silent and (plugin.report is None or _heard_at(plugin.report) <= now - lease_s):
        return plugin_refusing(snapshot, text, now)
    plugin = replace(plugin, unreported=failures, failing_since=since, ask_at=now + PLUGIN_RETRY_S)
    return replace(snapshot, plugin=plugin)


def _heard_at(report: PinReport) -> float:
    return max((report.reported_at, *(pin.seen_at for pin in report.pins.values())))


def renewal_unanswered(snapshot: Snapshot, pin_id: str, now: float) -> Snapshot:
    """Take note that the renewal of this pin got no answer."""
    report = snapshot.plugin.report
    if report is None:
        return snapshot
    plugin = replace(snapshot.plugin, report=report.unanswered(pin_id, now))
    return replace(snapshot, plugin=plugin)


def plugin_unknown(snapshot: Snapshot) -> Snapshot:
    """Take note that the plugin has another epoch than we know: its next report tells."""
    plugin = replace(snapshot.plugin, status=PluginStatus.UNKNOWN, ask_at=NEVER)
    return replace(snapshot, plugin=plugin)
