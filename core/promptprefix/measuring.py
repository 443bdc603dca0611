"""Which pods measure a text that finds no room there by its estimated size.

Its real size may be smaller, and it may share blocks with others: only an engine's tokenizer tells.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from promptprefix.circles import Circle
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft, Tenure
from promptprefix.eligibility import Standing
from promptprefix.resource import Pinning
from promptprefix.roster import Station, tie_of


def measure(dossiers: Iterable[Dossier]) -> None:
    """Let those be measured on a pod that are on none for want of room and of unknown size."""
    for dossier in dossiers:
        draft = dossier.draft
        station = _station(dossier) if draft.missing > 0 and draft.open else None
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
    notes, tie = dossier.notes.by_station, tie_of(prefix.uid)
    told = [station for station, note in notes.items() if note.knows]
    able = _able(told, draft, circle, known) or _able(circle.eligible, draft, circle, known)
    return min(able, key=lambda each: each.tie ^ tie, default=None)


def _able(
    stations: Iterable[Station], draft: Draft, circle: Circle, known: Container[int]
) -> Sequence[Station]:
    """Return those of the pods that can measure it."""
    return [
        station
        for station in stations
        if circle.standing.get(station) is Standing.ELIGIBLE
        and station not in draft.claims
        and (engine := station.candidate.engine) is not None
        and engine.block_size not in known
    ]


def _on_some(draft: Draft, circle: Circle) -> bool:
    """Whether a pod that can measure it is told to hold it anyway."""
    return any(circle.standing[each] is Standing.ELIGIBLE for each in draft.chosen)
