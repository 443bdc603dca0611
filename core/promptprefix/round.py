"""One plan in the making: only what is new, and what that moves, is worked out again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from promptprefix.assignment import assign
from promptprefix.budget import budget_of
from promptprefix.circles import Circles
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft
from promptprefix.fleet import Limits, Snapshot
from promptprefix.measuring import measure
from promptprefix.refusals import Takers
from promptprefix.register import Opening
from promptprefix.roster import Roster, Station
from promptprefix.routes import endpoint_of, same_warm
from promptprefix.settlement import Settlement, settle_alike
from promptprefix.telling import looks_around, status_for
from promptprefix.windows import Calendar

_ALL = Limits()


class Round:
    """The steps of one plan, in their order.

    ``moved`` are pods on which claims, budgets or reports are others than after the last plan,
    ``restated`` those that are told to hold something else of what they have warm. ``anew`` are
    resources of which routers and statuses may tell something else. ``open`` is whether who has
    room where has to be asked again.
    """

    def __init__(
        self, opening: Opening, stations: Sequence[Station], snapshot: Snapshot, now: datetime
    ) -> None:
        self._dossiers = opening.dossiers
        self._stirred = opening.stirred
        self._gone = opening.gone
        self._every = opening.every
        self._stations = stations
        self._snapshot = snapshot
        self._now = now
        self._moved: set[Station] = set()
        self._renewed: set[Station] = set()
        self._turned: dict[Draft, dict[Station, None]] = {}
        self._restated: set[Station] = set()
        self._anew: dict[Dossier, None] = dict.fromkeys(opening.stirred)
        self._around: set[Dossier] = set()
        self._loose: dict[Draft, None] = {}
        self._open = bool(opening.gone)

    def begin(self, roster: Roster, circles: Circles, calendar: Calendar) -> None:
        """Say what each resource asks for now, which pods it selects, and what pods have."""
        for company in roster.companies.values():
            self._renewed |= company.renewed
        self._moved |= self._renewed
        for draft in self._gone:
            left = list(draft.leave())
            self._moved.update(left)
            self._turn(draft, left)
        renewed = circles.follow()
        for dossier in self._stirred:
            draft = dossier.draft
            before = draft.asked
            self._ask(dossier, roster, circles, calendar)
            self._open = self._open or draft.asked != before
            self._loose[draft] = None
        for dossier in self._dossiers if renewed else ():
            circle = dossier.draft.circle
            if circle is not None and (present := renewed.get(circle)) is not None:
                self._open = True
                self._around.add(dossier)
                if dossier.draft.enter(present):
                    self._loose[dossier.draft] = None
        for station in self._stations if self._every else self._renewed:
            share = self._limits(station.candidate.pod.namespace)
            budget = budget_of(station.candidate.engine, share)
            if budget != station.ledger.budget:
                station.ledger.reckon(budget)
                self._moved.add(station)
                self._open = True

    def _ask(self, dossier: Dossier, roster: Roster, circles: Circles, calendar: Calendar) -> None:
        draft, prefix, spec = dossier.draft, dossier.prefix, dossier.prefix.spec
        demand = dossier.demand(self._snapshot, self._now, calendar)
        cap = self._limits(prefix.namespace).max_priority
        priority = min(spec.priority, cap) if spec is not None else 0
        draft.begin(prefix, priority, demand, dossier.room)
        selector = prefix.selector
        if spec is not None and selector is not None and not spec.suspend and not prefix.deleting:
            company = roster.company(prefix.namespace)
            circle = circles.circle(
                prefix.namespace, company, dossier.selector, selector, spec.model
            )
            draft.circle = circle
            dossier.follow(circle, demand.held)
            draft.awaited = self._snapshot.settling and not circle.connected
        draft.stays = dossier.stays
        draft.asked = (
            prefix,
            draft.order,
            demand.held,
            draft.circle,
            draft.sizes,
            draft.stays,
            draft.stays.mark,
            draft.awaited,
            dossier.notes.status_mark,
        )

    def assign(self) -> None:
        """Choose the pods of all resources, unless nothing is new that matters to it."""
        if not self._open:
            return
        drafts = [dossier.draft for dossier in self._dossiers]
        for draft in drafts:
            if draft.measuring is not None:
                self._turn(draft, (draft.measuring,))
                draft.end_measuring()
        self._loose.update(dict.fromkeys(draft for draft in drafts if draft.loose))
        assign(drafts, self._loose, self._stations)
        measure([each for each in self._dossiers if each.draft.missing > 0])
        for draft in drafts:
            if draft.measuring is not None:
                self._turn(draft, (draft.measuring,))

    def settle(self) -> None:
        """Say which versions chosen pods hold, and tell it to them."""
        settlement = Settlement(self._now, self._snapshot.retention)
        edited = []
        for dossier in self._dossiers:
            draft = dossier.draft
            if draft.touched:
                self._anew[dossier] = None
                moved, turned = draft.moves()
                self._moved |= moved
                self._turn(draft, moved)
                settlement.turn(dossier, turned & draft.claims.keys())
            if dossier.prefix.earlier:
                edited.append(dossier)
                if dossier in self._anew or settlement.due(draft):
                    settlement.consider(dossier)
            elif dossier in self._anew:
                self._moved.update(draft.tenures)
                if settle_alike(dossier):
                    self._turn(draft, draft.claims)
        for dossier, stations in settlement.settle(edited, self._moved):
            self._anew[dossier] = None
            self._turn(dossier.draft, stations)
        self._tell_pods()

    def _turn(self, draft: Draft, stations: Iterable[Station]) -> None:
        """Note pods that may be told something else of a resource."""
        if (turned := self._turned.get(draft)) is None:
            turned = self._turned[draft] = {}
        turned.update(dict.fromkeys(stations))

    def _tell_pods(self) -> None:
        renewed = self._renewed
        for draft, stations in self._turned.items():
            for station in stations:
                told = draft.told(station)
                before = station.desired.tell(draft.rank, told)
                if before is told or station in renewed:
                    continue
                if not same_warm(station.candidate, before, told):
                    self._restated.add(station)

    def show(self) -> None:
        """Bring what routers see of pods to the present."""
        for station in self._restated | self._renewed:
            made = endpoint_of(station.candidate, station.desired.placements)
            if made != station.endpoint:
                station.endpoint = made

    def tell(self, takers: Takers) -> None:
        """Bring statuses, and what routers see of resources, to the present."""
        for dossier in self._anew:
            dossier.route()
        again = dict(self._anew)
        if self._open:
            again.update(dict.fromkeys(each for each in self._dossiers if _lacks_room(each.draft)))
        again.update(dict.fromkeys(each for each in self._around if looks_around(each.draft)))
        for dossier in again:
            prefix = dossier.draft.prefix
            if not dossier.draft.awaited and not prefix.deleting:
                status_for(dossier, takers, self._limits(prefix.namespace), self._now)

    def _limits(self, namespace: str) -> Limits:
        return self._snapshot.limits.get(namespace, _ALL)


def _lacks_room(draft: Draft) -> bool:
    """Whether a status may tell of a lack of room, and so of who has it."""
    return bool(draft.varied) or draft.missing > 0
