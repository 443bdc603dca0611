"""The planner: which pods hold which prefix, what the router sees, and what the status says.

A plan is a pure function of one snapshot and the clock: equal ones give equal plans. A `Planner`
remembers what it read and worked out, so that a plan after a small change costs little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from promptprefix import collector
from promptprefix.circles import Circles
from promptprefix.dossier import Dossier
from promptprefix.fleet import Snapshot
from promptprefix.refusals import Takers
from promptprefix.register import Register
from promptprefix.resource import PromptPrefixStatus
from promptprefix.roster import Roster, Station
from promptprefix.round import Round
from promptprefix.windows import Calendar
from promptprefix.wire import Placement, RouteEndpoint, RoutePrefix


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

    Only those resources are looked at again of which something is new; what becomes of them may
    concern others by the room on their pods alone. One whose `plan` has raised is of no further
    use.
    """

    def __init__(self) -> None:
        self._calendar = Calendar()
        self._roster = Roster()
        self._circles = Circles()
        self._register = Register()
        self._takers: Takers | None = None

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Return the plan for ``snapshot``, the same as any other planner's."""
        with collector.waiting():
            return self._made(snapshot, now)

    def _made(self, snapshot: Snapshot, now: datetime) -> Plan:
        roster = self._roster
        roster.see(snapshot.pods, snapshot.sidecars)
        opening = self._register.open(snapshot, roster, now)
        stations = [
            station
            for _, company in sorted(roster.companies.items())
            for station in company.in_order
        ]
        steps = Round(opening, stations, snapshot, now)
        steps.begin(roster, self._circles, self._calendar)
        steps.assign()
        steps.settle()
        steps.show()
        self._takers = Takers([dossier.draft for dossier in opening.dossiers], self._takers)
        steps.tell(self._takers)
        if opening.stirred or opening.gone:
            self._circles.keep(
                {each.draft.circle for each in opening.dossiers if each.draft.circle is not None}
            )
        for company in roster.companies.values():
            company.close()
        return _plan(opening.dossiers, stations)


def _plan(dossiers: Sequence[Dossier], stations: Sequence[Station]) -> Plan:
    prefixes: list[RoutePrefix] = []
    statuses: dict[str, PromptPrefixStatus] = {}
    kept: list[str] = []
    wakes: list[datetime] = []
    for dossier in dossiers:
        draft, status = dossier.draft, dossier.status
        prefixes += dossier.routed
        if status is not None and not draft.awaited and not draft.prefix.deleting:
            statuses[draft.prefix.uid] = status
        for id_, on in draft.holders.items():
            if on:
                kept.append(id_)
        # The clock may change what is held.
        if draft.demand.wake_at is not None:
            wakes.append(draft.demand.wake_at)
        if draft.until is not None:
            wakes.append(draft.until)
    return Plan(
        desired={
            station.uid: station.desired.placements
            for station in stations
            if station.candidate.engine is not None
        },
        prefixes=tuple(prefixes),
        endpoints=tuple(each.endpoint for each in stations if each.endpoint is not None),
        statuses=statuses,
        kept=frozenset(kept),
        wake_at=min(wakes, default=None),
    )
