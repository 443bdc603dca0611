"""What the pods that were chosen hold of each resource, settled anew where something changed.

Of a resource that was edited, versions share the room that all claims leave on a pod: who comes
first takes it. So one that changes there may change others, unless there is room for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from promptprefix.budget import Claimant
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft, Tenure
from promptprefix.fleet import Retention
from promptprefix.roster import Station
from promptprefix.tenure import ends, tenures
from promptprefix.wire import Placement


def settle_alike(dossier: Dossier) -> bool:
    """Let all pods of a resource without earlier versions hold the same.

    Return whether that is something else than before.
    """
    draft, sole = dossier.draft, dossier.sole
    draft.holders, draft.until = {each.version.id: draft.chosen for each in sole}, None
    told = tuple(dossier.placement(each, draft.priority, draft.demand) for each in sole)
    if told == draft.common and not draft.tenures:
        return False
    draft.common, draft.settled = told, None
    draft.tenures, draft.varied = {}, {}
    return True


class Settlement:
    """Settles the edited resources of one plan."""

    def __init__(self, now: datetime, retention: Retention) -> None:
        self._now = now
        self._retention = retention
        self._waiting: dict[Station, list[Dossier]] = {}
        self._ends: dict[Dossier, Mapping[str, datetime | None]] = {}
        self._renewed: set[Dossier] = set()
        self._turned: dict[Draft, set[Station]] = {}

    def consider(self, dossier: Dossier) -> None:
        """Settle a resource anew on all pods if it asks for something else than before.

        The end of a version's time is such, too, and a clock that was set back.
        """
        draft, matched = dossier.draft, dossier.notes.matched
        key = (
            draft.prefix,
            draft.demand,
            draft.priority,
            draft.sizes,
            self._retention,
            tuple(matched.get(version.id) for version in draft.prefix.earlier),
        )
        if draft.settled is not None and not self.due(draft):
            since, before = draft.settled
            if since <= self._now and before == key:
                return
        draft.settled = (self._now, key)
        self._renewed.add(dossier)
        self.turn(dossier, draft.chosen)

    def turn(self, dossier: Dossier, stations: Iterable[Station]) -> None:
        """Settle a resource anew on some of its pods."""
        for station in stations:
            if (waiting := self._waiting.get(station)) is None:
                self._waiting[station] = [dossier]
            elif dossier not in waiting:
                waiting.append(dossier)

    def due(self, draft: Draft) -> bool:
        """Whether the time of a version that some pod holds has ended."""
        return draft.until is not None and draft.until <= self._now

    def settle(
        self, edited: Sequence[Dossier], moved: Collection[Station]
    ) -> Iterator[tuple[Dossier, Iterable[Station]]]:
        """Yield the pods that may be told something else of a resource, by resource.

        ``edited`` are all resources that have earlier versions. On pods that ``moved`` all are
        settled anew: claims, budgets or reports changed there.
        """
        by_draft: dict[Claimant, Dossier] = {each.draft: each for each in edited}
        for station in moved:
            self._all(station, by_draft)
        for station, waiting in self._waiting.items():
            if station in moved:
                continue
            if station.extras.tight or not self._added(station, waiting):
                self._all(station, by_draft)
        for dossier in edited:
            draft = dossier.draft
            turned = self._turned.get(draft, set())
            left = draft.tenures.keys() - draft.claims.keys()
            renewed = dossier in self._renewed
            if renewed:
                draft.common = ()
                turned = set(draft.chosen)
            if renewed or turned or left:
                _tell(dossier, turned, left)
                yield dossier, turned | left

    def _added(self, station: Station, waiting: list[Dossier]) -> bool:
        """Settle some on a pod that has room for all others; return whether there is for them."""
        if len(waiting) > 1:
            waiting.sort(key=lambda each: each.draft.order)
        for dossier in waiting:
            station.extras.give_back(dossier.draft)
        for dossier in waiting:
            self._one(dossier, station)
        return not station.extras.tight

    def _all(self, station: Station, dossiers: Mapping[Claimant, Dossier]) -> None:
        station.extras.clear()
        if not dossiers:
            return
        here = [dossiers[each] for each in station.ledger.claims if each in dossiers]
        for dossier in sorted(here, key=lambda each: each.draft.order):
            if station in dossier.draft.claims:
                self._one(dossier, station)

    def _one(self, dossier: Dossier, station: Station) -> None:
        draft = dossier.draft
        if (kept := self._ends.get(dossier)) is None:
            matched = dossier.notes.matched
            kept = self._ends[dossier] = ends(draft.prefix, matched, self._retention)
        made = tenures(draft, station, kept, self._now)
        if made != draft.tenures.get(station):
            draft.tenures[station] = made
            if (turned := self._turned.get(draft)) is None:
                turned = self._turned[draft] = set()
            turned.add(station)


def _tell(dossier: Dossier, turned: Iterable[Station], left: Iterable[Station]) -> None:
    """Bring what a resource holds, and what pods are told of it, to the present."""
    draft = dossier.draft
    for station in left:
        del draft.tenures[station]
        draft.varied.pop(station, None)
    last: tuple[Tenure, ...] | None = None
    placements: tuple[Placement, ...] = ()
    for station in turned:
        if draft.tenures[station] != last:
            last = draft.tenures[station]
            placements = tuple(
                dossier.placement(each, draft.priority, draft.demand) for each in last
            )
        draft.varied[station] = placements
    draft.holders, draft.until = _holders(draft)


def _holders(draft: Draft) -> tuple[Mapping[str, Sequence[Station]], datetime | None]:
    """Return the pods by the versions that they hold, and when the time of the first ends."""
    holders: dict[str, list[Station]] = {}
    ends: list[datetime] = []
    last: tuple[Tenure, ...] | None = None
    on: Sequence[list[Station]] = ()
    for station in draft.chosen:
        if draft.tenures[station] != last:
            last = draft.tenures[station]
            held = [each.version.id for each in last if not each.measured]
            on = [holders.setdefault(id_, []) for id_ in held]
            ends += [each.until for each in last if each.until is not None]
        for stations in on:
            stations.append(station)
    return holders, min(ends, default=None)
