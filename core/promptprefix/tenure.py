"""Which versions of a resource a chosen pod is told to hold, and how.

The declared version comes first. Until it is warm on a pod, the newest earlier version that is
stays, and its room comes first: a text that can't be warmed takes nothing away. Earlier versions
that clients still send stay where they are warm, pinned as far as room is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from promptprefix.accounts import held_there
from promptprefix.draft import Draft, Tenure
from promptprefix.fleet import Prefix, Retention, Version
from promptprefix.heads import NOTHING
from promptprefix.resource import Pinning
from promptprefix.roster import Station
from promptprefix.versions import kept_until
from promptprefix.wire import Phase


def declared(prefix: Prefix) -> Version | None:
    """Return the version that is to be warm; None if it can't be."""
    return prefix.version if prefix.refusal is None else None


def sole(prefix: Prefix) -> tuple[Tenure, ...]:
    """Return what all chosen pods hold of a resource that has no earlier versions."""
    current = declared(prefix)
    return () if current is None else (Tenure(current, prefix.pinning),)


def ends(
    prefix: Prefix, matched: Mapping[str, datetime], retention: Retention
) -> Mapping[str, datetime | None]:
    """Return until when earlier versions are kept, by id; ``matched`` is what engines tell."""
    return {
        version.id: kept_until(version, matched.get(version.id), retention)
        for version in prefix.earlier
    }


def tenures(
    draft: Draft, station: Station, kept: Mapping[str, datetime | None], now: datetime
) -> tuple[Tenure, ...]:
    """Return what a chosen pod holds of a resource; takes the room for it where some is left.

    ``kept`` are the `ends` of earlier versions.
    """
    if not draft.demand.held:
        return tuple(_released(draft, station))
    return tuple(_held(draft, station, kept, now))


def _released(draft: Draft, station: Station) -> Iterator[Tenure]:
    """Yield the declared version, whose matches are watched for, and what is not yet let go."""
    prefix = draft.prefix
    if (current := declared(prefix)) is not None:
        yield Tenure(current, prefix.pinning)
    for version in prefix.earlier:
        state = station.candidate.reported.get(version.id)
        if state is not None and held_there(state):
            yield Tenure(version, prefix.pinning, retained=True)


def _held(
    draft: Draft, station: Station, kept: Mapping[str, datetime | None], now: datetime
) -> Sequence[Tenure]:
    prefix, extras, sizes = draft.prefix, station.extras, draft.sizes
    wanted, reported = prefix.pinning, station.candidate.reported
    serving = declared(prefix)
    needed = serving is None or station in draft.olds
    held = []
    if serving is not None:
        room = sizes.of(serving, station) if needed else NOTHING
        if not needed or extras.take(draft, room):
            held.append(Tenure(serving, wanted))
        elif station.ledger.could(draft, room):
            held.append(Tenure(serving, Pinning.NONE))
        elif serving.readable and _unmeasured(draft, serving, station):
            held.append(Tenure(serving, wanted, measured=True))
    for version in prefix.earlier:
        state = reported.get(version.id)
        if state is None or state.phase is not Phase.WARM:
            continue
        if needed:
            needed = False
            held.append(Tenure(version, wanted, retained=True))
            continue
        until = kept[version.id]
        if until is None or now < until:
            fits = extras.take(draft, sizes.of(version, station))
            pinning = wanted if fits else Pinning.NONE
            held.append(Tenure(version, pinning, retained=True, until=until))
    return held


def _unmeasured(draft: Draft, version: Version, station: Station) -> bool:
    """Whether no engine like this pod's has told how large the version is."""
    engine = station.candidate.engine
    known = draft.sizes.measured(version)
    return engine is not None and engine.block_size not in known
