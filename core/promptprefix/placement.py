"""The planner: which pods hold which prefix, what the router sees, and what the status says.

A plan is a pure function of one snapshot and the clock: equal ones give equal plans. A `Planner`
remembers what it read and worked out, so that a plan after a small change costs little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from promptprefix.assignment import assign
from promptprefix.budget import budget_of
from promptprefix.circles import Circles
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft
from promptprefix.fleet import Limits, Prefix, Snapshot
from promptprefix.heads import Families, Head
from promptprefix.measuring import measure
from promptprefix.refusals import Takers
from promptprefix.resource import PromptPrefixStatus
from promptprefix.roster import Roster, Station
from promptprefix.routes import endpoint_of
from promptprefix.sizes import Remembered, Sizes
from promptprefix.telling import status_for
from promptprefix.tenure import tenures
from promptprefix.windows import Calendar
from promptprefix.wire import Placement, RouteEndpoint, RoutePrefix

_ALL = Limits()


@dataclass(frozen=True)
class Plan:
    """What should be.

    ``desired`` maps the uid of each connected pod to its whole set. ``statuses`` maps the uids of
    resources, but for those that are being deleted or about which it is too early to speak;
    ``kept`` holds the ids of all versions that some pod should hold. ``wake_at`` is the earliest
    moment at which the clock alone may change the plan.
    """

    desired: Mapping[str, tuple[Placement, ...]]
    prefixes: tuple[RoutePrefix, ...]
    endpoints: tuple[RouteEndpoint, ...]
    statuses: Mapping[str, PromptPrefixStatus]
    kept: frozenset[str]
    wake_at: datetime | None = None


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan for ``snapshot``; ``now`` dates the transitions of conditions."""
    return Planner().plan(snapshot, now)


class Planner:
    """Makes plans, and remembers as much as the pods and resources of the last snapshot need.

    One whose `plan` has raised is of no further use.
    """

    def __init__(self) -> None:
        self._calendar = Calendar()
        self._roster = Roster()
        self._circles = Circles()
        self._dossiers: dict[str, Dossier] = {}
        self._drafts: dict[str, Draft] = {}
        self._heads: Sequence[tuple[Head, ...]] = ()
        self._families = Families(())
        self._sized: Sequence[Dossier] = ()
        self._sizes = Sizes({}, self._families)
        self._extended: set[Station] = set()

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Return the plan for ``snapshot``, the same as any other planner's."""
        self._roster.see(snapshot.pods, snapshot.sidecars)
        prefixes = sorted(snapshot.prefixes, key=lambda each: (each.namespace, each.name, each.uid))
        dossiers = self._open(prefixes, snapshot.sizes)
        moved: set[Station] = set()
        drafts = self._begin(snapshot, dossiers, now, moved)
        stations = self._stations(snapshot.limits)
        assign(drafts, stations, moved)
        measure(drafts, dossiers, moved)
        self._settle(drafts, dossiers, snapshot, now, moved)
        takers = Takers()
        statuses = {}
        routes: list[RoutePrefix] = []
        for draft, dossier in zip(drafts, dossiers, strict=True):
            routes += dossier.routes(draft)
            if not draft.prefix.deleting and not draft.awaited:
                limits = snapshot.limits.get(draft.prefix.namespace, _ALL)
                statuses[draft.prefix.uid] = status_for(draft, dossier, takers, limits, now)
        self._close()
        return Plan(
            desired=_desired(stations, moved),
            prefixes=tuple(routes),
            endpoints=tuple(_endpoints(stations)),
            statuses=statuses,
            kept=frozenset(id_ for draft in drafts for id_, on in draft.holders.items() if on),
            wake_at=min(_wakes(drafts), default=None),
        )

    def _open(self, prefixes: Sequence[Prefix], remembered: Remembered) -> Sequence[Dossier]:
        """Return the dossiers of all resources, and read what is new of them."""
        opened: dict[str, Dossier] = {}
        for prefix in prefixes:
            dossier = self._dossiers.get(prefix.uid)
            if dossier is None or (dossier.prefix is not prefix and dossier.prefix != prefix):
                dossier = Dossier(prefix)
            dossier.read(self._roster.company(prefix.namespace), remembered)
            opened[prefix.uid] = dossier
        self._dossiers = opened
        return list(opened.values())

    def _close(self) -> None:
        self._circles.prune()
        for company in self._roster.companies.values():
            company.close()

    def _begin(
        self, snapshot: Snapshot, dossiers: Sequence[Dossier], now: datetime, moved: set[Station]
    ) -> list[Draft]:
        """Return the drafts as the last plan left them, with what each resource asks for now."""
        for station in self._extended:
            station.ledger.retract()
        for draft in self._drafts.values():
            draft.end_measuring(moved)
        for uid in self._drafts.keys() - self._dossiers.keys():
            self._drafts.pop(uid).leave(moved)
        heads = [dossier.heads for dossier in dossiers if dossier.heads]
        if heads != self._heads:
            self._families = Families(head for each in heads for head in each)
        self._heads = heads
        known = (self._roster.companies, self._families, snapshot.sizes)
        if dossiers != self._sized or not self._sizes.hold(*known):
            self._sized, self._sizes = dossiers, Sizes(*known)
        return [self._draft(snapshot, dossier, now) for dossier in dossiers]

    def _draft(self, snapshot: Snapshot, dossier: Dossier, now: datetime) -> Draft:
        sizes, prefix, spec = self._sizes, dossier.prefix, dossier.prefix.spec
        draft = self._drafts.get(prefix.uid)
        if draft is None:
            draft = self._drafts[prefix.uid] = Draft(prefix)
        demand = dossier.demand(snapshot, now, self._calendar)
        cap = snapshot.limits.get(prefix.namespace, _ALL).max_priority
        priority = min(spec.priority, cap) if spec is not None else 0
        if spec is None or spec.suspend or prefix.deleting:
            draft.begin(prefix, priority, demand, None, sizes)
            return draft
        company = self._roster.company(prefix.namespace)
        circle = self._circles.circle(
            prefix.namespace, company, dossier.selector, spec.pods.selector, spec.model
        )
        draft.begin(prefix, priority, demand, circle, sizes)
        draft.stays = dossier.stays(circle, sizes, self._families, demand.held)
        draft.awaited = snapshot.settling and not circle.connected
        return draft

    def _stations(self, limits: Mapping[str, Limits]) -> list[Station]:
        """Return all pods, by namespace and name, with the budgets of this moment."""
        companies = self._roster.companies
        stations = []
        for namespace in sorted(companies):
            share = limits.get(namespace, _ALL)
            for station in companies[namespace].in_order:
                station.ledger.budget = budget_of(station.candidate.engine, share)
                stations.append(station)
        return stations

    def _settle(
        self,
        drafts: Sequence[Draft],
        dossiers: Sequence[Dossier],
        snapshot: Snapshot,
        now: datetime,
        moved: set[Station],
    ) -> None:
        """Say which versions chosen pods hold; room for more than one goes by priority, too."""
        edited = []
        for draft, dossier in zip(drafts, dossiers, strict=True):
            if draft.prefix.earlier:
                edited.append((draft, dossier))
            else:
                draft.settle_alike(
                    {each.version.id: draft.chosen for each in dossier.sole},
                    tuple(
                        dossier.placement(each, draft.priority, draft.demand)
                        for each in dossier.sole
                    ),
                    moved,
                )
        edited.sort(key=lambda each: each[0].order)
        self._extended = set()
        for draft, dossier in edited:
            self._extended.update(draft.chosen)
            matched, retention = dossier.notes.matched, snapshot.retention
            held = {
                station: tenures(draft, station, matched, now, retention)
                for station in draft.chosen
            }
            placements = {
                station: tuple(dossier.placement(each, draft.priority, draft.demand) for each in on)
                for station, on in held.items()
            }
            draft.settle(held, placements, moved)


def _desired(
    stations: Sequence[Station], moved: set[Station]
) -> Mapping[str, tuple[Placement, ...]]:
    for station in moved:
        placements: list[Placement] = []
        drafts = (each for each in station.ledger.claims if isinstance(each, Draft))
        for draft in sorted(drafts, key=attrgetter("rank")):
            placements += draft.told(station)
        made = tuple(placements)
        if made != station.desired:
            station.desired = made
    return {
        station.candidate.pod.uid: station.desired
        for station in stations
        if station.candidate.engine is not None
    }


def _endpoints(stations: Sequence[Station]) -> Iterator[RouteEndpoint]:
    for station in stations:
        shown = station.shown
        if shown is None or shown[0] is not station.candidate or shown[1] is not station.desired:
            station.shown = (station.candidate, station.desired)
            made = endpoint_of(*station.shown)
            if made != station.endpoint:
                station.endpoint = made
        if station.endpoint is not None:
            yield station.endpoint


def _wakes(drafts: Sequence[Draft]) -> Iterator[datetime]:
    """Yield when the clock may change what is held."""
    for draft in drafts:
        if draft.demand.wake_at is not None:
            yield draft.demand.wake_at
        if draft.until is not None:
            yield draft.until
