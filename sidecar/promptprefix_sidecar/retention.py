"""Earlier texts: never asked for and never warmed, as warm as what the engine tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.lifecycle import pending, warmed
from promptprefix_sidecar.pins import PinReport, pin_owner
from promptprefix_sidecar.snapshot import FOREVER, FoundPin, Record


def as_found(record: Record, report: PinReport) -> Record:
    """Return a retained record without tokens as the engine's pins say, told apart by owner.

    Without a pin, as `Pinning.NONE` wants it, what the engine still watches counts.
    """
    if not record.held or not record.placement.retained or record.head is not None:
        return record
    hard = record.placement.pinning is Pinning.HARD
    found = next(_found(record, report, hard=hard), None)
    if found is not None:
        if record.phase is Phase.WARM and record.found == found:
            return record
        pinned = Pinning.HARD if hard else Pinning.NONE
        return warmed(replace(record, found=found), pinned, 0.0, FOREVER)
    return replace(pending(record), found=None) if record.phase is Phase.WARM else record


def _found(record: Record, report: PinReport, *, hard: bool) -> Iterator[FoundPin]:
    owner = pin_owner(record.id)
    for pin_id in report.pins_of.get(owner, ()):
        view = report.pins[pin_id].view
        if view.whole:
            yield FoundPin(view.id, view.tokens)
    if not hard:
        for watched_id in report.watched_of.get(owner, ()):
            watch = (report.watched or {})[watched_id]
            if watch.whole:
                yield FoundPin(watch.id, watch.tokens)
