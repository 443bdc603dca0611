"""Which pods measure a text that finds no room there by its estimated size.

Its real size may be smaller, and it may share blocks with others: only an engine's tokenizer tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from promptprefix.circles import Circle
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft, Tenure
from promptprefix.eligibility import Standing
from promptprefix.resource import Pinning
from promptprefix.roster import Station


def measure(short: Iterable[Dossier]) -> None:
    """Let those be measured on a pod that are on none for want of room and of unknown size.

    ``short`` are all that are on fewer pods than they are wanted on.
    """
    for dossier in short:
        draft = dossier.draft
        station = _station(dossier) if draft.open else None
        if station is not None and dossier.current is not None:
            tenure = Tenure(dossier.current, draft.prefix.pinning, measured=True)
            draft.measure(station, dossier.placement(tenure, draft.priority, draft.demand))


def _station(dossier: Dossier) -> Station | None:
    """Return the pod that is to measure it; None if none has to.

    It is one that was told so before, if there is any.
    """
    draft, prefix = dossier.draft, dossier.draft.prefix
    circle, version = draft.circle, prefix.version
    if version is None or not version.readable or prefix.pinning is Pinning.NONE:
        return None
    known = draft.sizes.measured(version)
    if circle is None or circle.block_sizes <= known or _on_some(draft, circle):
        return None

    def able(station: Station) -> bool:
        engine = station.candidate.engine
        return (
            circle.standing.get(station) is Standing.ELIGIBLE
            and station not in draft.claims
            and engine is not None
            and engine.block_size not in known
        )

    notes = dossier.notes.by_station
    told = [station for station, note in notes.items() if note.account.knows]
    return _first(told, able, dossier.tie) or _first(circle.eligible, able, dossier.tie)


def _first(
    stations: Iterable[Station], able: Callable[[Station], bool], tie: int
) -> Station | None:
    """Return the one that the tie decides for, of those that are able to."""
    found, least = None, 0
    for station in stations:
        rank = station.tie ^ tie
        if (found is None or rank < least) and able(station):
            found, least = station, rank
    return found


def _on_some(draft: Draft, circle: Circle) -> bool:
    """Whether a pod that can measure it is told to hold it anyway."""
    return any(circle.standing[each] is Standing.ELIGIBLE for each in draft.chosen)
