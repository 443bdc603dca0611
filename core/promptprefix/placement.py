"""The planner: which pods hold which prefix, what the router sees, and what the status says.

A plan is a pure function of one snapshot and the clock: equal ones give equal plans. A `Planner`
remembers what it read and worked out, so that a plan after a small change costs little.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from promptprefix.assignment import Draft, assign
from promptprefix.budget import budget_of
from promptprefix.circles import Circles
from promptprefix.dossier import Dossier
from promptprefix.fleet import Limits, Prefix, Snapshot
from promptprefix.heads import Families, Head
from promptprefix.refusals import Takers
from promptprefix.resource import PromptPrefixStatus
from promptprefix.roster import Roster, Station
from promptprefix.routes import endpoint_of
from promptprefix.sizes import Sizes
from promptprefix.telling import status_for
from promptprefix.tenure import sole, tenures
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
    """Makes plans, and remembers as much as the pods and resources of the last snapshot need."""

    def __init__(self) -> None:
        self._calendar = Calendar()
        self._roster = Roster()
        self._circles = Circles()
        self._dossiers: dict[str, Dossier] = {}
        self._heads: Sequence[tuple[Head, ...]] = ()
        self._families = Families(())

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Return the plan for ``snapshot``, the same as any other planner's."""
        self._roster.see(snapshot.pods, snapshot.sidecars)
        prefixes = sorted(snapshot.prefixes, key=lambda each: (each.namespace, each.name, each.uid))
        dossiers = self._open(prefixes)
        stations = self._clear(snapshot.limits)
        drafts = self._drafts(snapshot, dossiers, now)
        assign(drafts)
        _settle(drafts, dossiers, snapshot, now)
        takers = Takers()
        statuses = {}
        routes: list[RoutePrefix] = []
        for draft, dossier in zip(drafts, dossiers, strict=True):
            _grant(draft, dossier)
            routes += dossier.routes_of(draft)
            if not draft.prefix.deleting and not draft.awaited:
                limits = snapshot.limits.get(draft.prefix.namespace, _ALL)
                statuses[draft.prefix.uid] = status_for(draft, dossier, takers, limits, now)
        self._circles.prune()
        return Plan(
            desired=_desired(stations),
            prefixes=tuple(routes),
            endpoints=tuple(_endpoints(stations)),
            statuses=statuses,
            kept=frozenset(id_ for draft in drafts for id_, on in draft.holders.items() if on),
            wake_at=min(_wakes(drafts, now), default=None),
        )

    def _open(self, prefixes: Sequence[Prefix]) -> Sequence[Dossier]:
        """Return the dossiers of all resources, and read what is new of them."""
        opened: dict[str, Dossier] = {}
        for prefix in prefixes:
            dossier = self._dossiers.get(prefix.uid)
            if dossier is None or (dossier.prefix is not prefix and dossier.prefix != prefix):
                dossier = Dossier(prefix)
            dossier.read(self._roster.company(prefix.namespace))
            opened[prefix.uid] = dossier
        self._dossiers = opened
        for company in self._roster.companies.values():
            company.prune(opened)
        return list(opened.values())

    def _clear(self, limits: Mapping[str, Limits]) -> list[Station]:
        """Return all pods, by namespace and name, each with an empty ledger."""
        companies = self._roster.companies
        stations = []
        for namespace in sorted(companies):
            share = limits.get(namespace, _ALL)
            for station in companies[namespace].in_order:
                station.ledger.clear(budget_of(station.candidate.engine, share))
                station.granted = []
                stations.append(station)
        return stations

    def _drafts(
        self, snapshot: Snapshot, dossiers: Sequence[Dossier], now: datetime
    ) -> list[Draft]:
        heads = [dossier.heads for dossier in dossiers if dossier.heads]
        if heads != self._heads:
            self._families = Families(head for each in heads for head in each)
        self._heads = heads
        sizes = Sizes(self._roster.companies, self._families)
        return [self._draft(snapshot, dossier, sizes, now) for dossier in dossiers]

    def _draft(self, snapshot: Snapshot, dossier: Dossier, sizes: Sizes, now: datetime) -> Draft:
        prefix, spec = dossier.prefix, dossier.prefix.spec
        demand = dossier.demand(prefix.namespace in snapshot.routed, now, self._calendar)
        cap = snapshot.limits.get(prefix.namespace, _ALL).max_priority
        priority = min(spec.priority, cap) if spec is not None else 0
        if spec is None or spec.suspend or prefix.deleting:
            return Draft(prefix, priority, demand, None, sizes)
        company = self._roster.company(prefix.namespace)
        circle = self._circles.circle(
            prefix.namespace, company, dossier.selector, spec.pods.selector, spec.model
        )
        draft = Draft(prefix, priority, demand, circle, sizes)
        draft.stays = dossier.stays(company, circle, sizes, self._families, demand.held)
        draft.awaited = snapshot.settling and not circle.connected
        return draft


def _settle(
    drafts: Sequence[Draft], dossiers: Sequence[Dossier], snapshot: Snapshot, now: datetime
) -> None:
    """Say which versions chosen pods hold; room for more than one goes by priority, too."""
    edited = []
    for draft, dossier in zip(drafts, dossiers, strict=True):
        if not draft.prefix.earlier:
            draft.tenures = sole(draft.prefix)
            draft.holders = {each.version.id: draft.chosen for each in draft.tenures}
        elif draft.chosen:
            edited.append((draft, dossier))
    edited.sort(key=lambda each: each[0].order)
    for draft, dossier in edited:
        for station in draft.chosen:
            held = tenures(draft, station, dossier.matched, now, snapshot.retention)
            draft.varied[station] = held
            for each in held:
                draft.holders.setdefault(each.version.id, []).append(station)


def _grant(draft: Draft, dossier: Dossier) -> None:
    """Add to the pods' sets."""
    if draft.varied:
        for station, held in draft.varied.items():
            station.granted += [
                dossier.placement(each, draft.priority, draft.demand) for each in held
            ]
        return
    for each in draft.tenures if draft.chosen else ():
        placement = dossier.placement(each, draft.priority, draft.demand)
        for station in draft.chosen:
            station.granted.append(placement)


def _desired(stations: Sequence[Station]) -> Mapping[str, tuple[Placement, ...]]:
    desired = {}
    for station in stations:
        if station.candidate.engine is None:
            continue
        made = tuple(station.granted)
        if made != station.desired:
            station.desired = made
        desired[station.candidate.pod.uid] = station.desired
    return desired


def _endpoints(stations: Sequence[Station]) -> Iterator[RouteEndpoint]:
    for station in stations:
        shown = (station.candidate, station.desired)
        if station.shown is None or not all(map(operator.is_, station.shown, shown)):
            made = endpoint_of(*shown)
            if made != station.endpoint:
                station.endpoint = made
            station.shown = shown
        if station.endpoint is not None:
            yield station.endpoint


def _wakes(drafts: Sequence[Draft], now: datetime) -> Iterator[datetime]:
    """Yield when the clock may change what is held."""
    for draft in drafts:
        if draft.demand.wake_at is not None:
            yield draft.demand.wake_at
        for held in draft.varied.values():
            for each in held:
                if each.until is not None and each.until > now:
                    yield each.until
