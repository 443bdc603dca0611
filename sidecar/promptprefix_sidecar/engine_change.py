"""What a look at the engine changes: another boot, models that come and go, sleep and waking."""

from __future__ import annotations

from dataclasses import replace

from promptprefix.wire import Phase
from promptprefix_sidecar.lifecycle import fresh, outdated, pending
from promptprefix_sidecar.settling import settle
from promptprefix_sidecar.snapshot import NEVER, EngineView, PluginView, Record, Snapshot


def with_engine(snapshot: Snapshot, view: EngineView) -> Snapshot:
    """Take over a look at the engine. Another boot has nothing of what the last one held."""
    before = snapshot.engine
    snapshot = replace(snapshot, engine=view)
    if view.boot != snapshot.boot:
        snapshot = forget_engine(replace(snapshot, boot=view.boot))
    elif view.healthy:
        if view.asleep and not before.asleep:
            snapshot = _forget_cache(snapshot)
        snapshot = _with_adapters(snapshot, before)
    return settle(snapshot)


def forget_engine(snapshot: Snapshot) -> Snapshot:
    """Everything is to be done again, from the tokens on; what was released is gone for good."""
    records = {
        record.id: _in_an_empty_engine(record)
        for record in snapshot.records.values()
        if record.wanted
    }
    return replace(snapshot, plugin=PluginView(), records=records)


def _in_an_empty_engine(record: Record) -> Record:
    if record.phase is not Phase.RELEASED:
        return fresh(record)
    return replace(fresh(record), phase=Phase.RELEASED, released=record.placement.release)


def _forget_cache(snapshot: Snapshot) -> Snapshot:
    """Nothing counts as cached before the plugin has told again what it holds."""
    report = snapshot.plugin.report
    if report is not None:
        report = replace(report, pins={}, reported_at=NEVER)
    records = {
        record.id: pending(record) if record.phase in (Phase.WARM, Phase.WARMING) else record
        for record in snapshot.records.values()
    }
    plugin = replace(snapshot.plugin, report=report)
    return replace(snapshot, plugin=plugin, records=records)


def _with_adapters(snapshot: Snapshot, before: EngineView) -> Snapshot:
    """Other weights under the same name: what is cached for them is of no use."""
    old, new = dict(before.roots), dict(snapshot.engine.roots)
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    if not changed:
        return snapshot
    records = {
        record.id: outdated(record) if record.placement.model in changed else record
        for record in snapshot.records.values()
    }
    return replace(snapshot, records=records)
