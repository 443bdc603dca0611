"""What the planner remembers of one resource between two plans.

All of it follows from the resource, the pods' reports and the clock; it is only worked out again
when one of these says something new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from promptprefix.assignment import Draft, Stay, Tenure
from promptprefix.circles import Circle
from promptprefix.conditions import Holding, Outlook
from promptprefix.demand import Demand, Evidence, demand
from promptprefix.eligibility import Standing
from promptprefix.fleet import Prefix, Version
from promptprefix.heads import NOTHING, Families, Head
from promptprefix.resource import PromptPrefixStatus
from promptprefix.roster import Company, Station, tie_of
from promptprefix.routes import route_prefix_of, routed_versions
from promptprefix.sizes import Sizes, heads_of
from promptprefix.tenure import declared
from promptprefix.windows import Calendar
from promptprefix.wire import HARD_PINS, Phase, Placement, RoutePrefix

_STAYING = (Standing.ELIGIBLE, Standing.UNHEALTHY, Standing.ASLEEP)
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


class Dossier:
    """Notes on one resource, for as long as it is the same object."""

    def __init__(self, prefix: Prefix) -> None:
        spec = prefix.spec
        self.prefix = prefix
        self.selector = spec.pods.selector.model_dump_json() if spec is not None else ""
        self.versions = tuple(v for v in (prefix.version, *prefix.earlier) if v is not None)
        self._tie = tie_of(prefix.uid)
        self.mark: tuple[Company, int] | None = None
        self.matched: Mapping[str, datetime] = {}
        self.warm_pods: Mapping[str, int] = {}
        self.heads: tuple[Head, ...] = ()
        self.plugged = False
        self.outlook: Outlook | None = None
        self.status: PromptPrefixStatus | None = None
        self.told: tuple[object, ...] = ()
        self.routes: tuple[RoutePrefix, ...] = ()
        self._routed: tuple[object, ...] = ()
        self._asked: tuple[Evidence, datetime, Demand] | None = None
        self._stays: tuple[tuple[object, ...], Sequence[Stay]] = ((), ())
        self._holdings: dict[Station, Holding] = {}
        self._placements: dict[tuple[object, ...], Placement] = {}

    def read(self, company: Company) -> None:
        """Read what the pods report of it, if that is news."""
        mark = (company, company.news[self.prefix.uid])
        if mark == self.mark:
            return
        self.mark = mark
        hits: dict[str, float] = {}
        warm: dict[str, int] = {}
        self.plugged = False
        for station in company.holders.get(self.prefix.uid, ()):
            each = station.candidate
            engine = each.engine
            if engine is not None and HARD_PINS in engine.capabilities:
                self.plugged = True
            for version in self.versions:
                state = each.reported.get(version.id)
                if state is None:
                    continue
                if state.last_hit is not None and state.last_hit > hits.get(version.id, 0.0):
                    hits[version.id] = min(state.last_hit, _LATEST)
                if state.phase is Phase.WARM and each.serving:
                    warm[version.id] = warm.get(version.id, 0) + 1
        self.matched = {id_: datetime.fromtimestamp(hit, UTC) for id_, hit in hits.items()}
        self.warm_pods = warm
        heads = tuple(heads_of(self.prefix, company))
        if heads != self.heads:
            self.heads = heads

    def demand(self, routed: bool, now: datetime, calendar: Calendar) -> Demand:
        """Return whether it is to be held; ``routed``: a router tells of its matches."""
        matches = [v.last_matched for v in self.versions if v.last_matched is not None]
        latest = max((*matches, *self.matched.values()), default=None)
        if latest is not None and latest > now:
            latest = now
        evidence = Evidence(latest, routed or self.plugged)
        if self._asked is not None:
            asked, since, answer = self._asked
            fresh = since <= now and (answer.wake_at is None or now < answer.wake_at)
            if fresh and asked == evidence:
                return answer
        answer = demand(self.prefix, evidence, now, calendar)
        self._asked = (evidence, now, answer)
        return answer

    def stays(
        self, company: Company, circle: Circle, sizes: Sizes, families: Families, held: bool
    ) -> Sequence[Stay]:
        """Return the pods that may keep it, those that should stay first."""
        key = (self.mark, circle, families, held)
        if self._stays[0] != key:
            self._stays = (key, self._in_order(list(self._staying(company, circle, sizes, held))))
        return self._stays[1]

    def _staying(
        self, company: Company, circle: Circle, sizes: Sizes, held: bool
    ) -> Iterator[Stay]:
        prefix = self.prefix
        current = declared(prefix)
        for station in company.holders.get(prefix.uid, ()):
            standing = circle.standing.get(station)
            if standing not in _STAYING or standing is None:
                continue
            each = station.candidate
            phase = None if current is None else each.phase(current.id)
            warm = (v for v in prefix.earlier if each.phase(v.id) is Phase.WARM)
            old = next(warm, None) if prefix.earlier else None
            before = None if old is None else sizes.of(prefix, old, station)
            if current is None:
                yield Stay(station, standing, before or NOTHING)
                continue
            room = sizes.of(prefix, current, station)
            if before is None or not held:
                yield Stay(station, standing, room)
            elif phase is Phase.WARM:
                yield Stay(station, standing, room, second=before)
            else:
                yield Stay(station, standing, before, alone=room)

    def _in_order(self, stays: list[Stay]) -> Sequence[Stay]:
        """Order pods that hold it: the warm ones first, each zone and node in its turn."""
        spec, uid = self.prefix.spec, self.prefix.uid
        if spec is None or spec.replicas == "All":
            return sorted(stays, key=lambda each: each.station.order)
        cold = {each: uid not in each.station.candidate.warms for each in stays}
        ranked = sorted(stays, key=lambda each: (cold[each], each.station.tie ^ self._tie))
        crowd = _turns(ranked, lambda each: each.station.node)
        ranked.sort(key=lambda each: (cold[each], crowd[each]))
        turn = _turns(ranked, lambda each: each.station.zone)
        ranked.sort(key=lambda each: (cold[each], turn[each], crowd[each]))
        return ranked

    def placement(self, tenure: Tenure, priority: int, asked: Demand) -> Placement:
        """Return what a pod is told of a version that it holds."""
        release = None if asked.held else asked.release
        version = tenure.version
        key = (version.id, priority, tenure.pinning, release, tenure.retained)
        found = self._placements.get(key)
        if found is None:
            found = self._placements[key] = Placement(
                id=version.id,
                namespace=self.prefix.namespace,
                name=self.prefix.name,
                model=version.model,
                fingerprint=version.fingerprint,
                content_digest=version.content_digest,
                pinning=tenure.pinning,
                priority=priority,
                release=release,
                retained=tenure.retained,
                salted=bool(version.salt_digest),
            )
        return found

    def routes_of(self, draft: Draft) -> tuple[RoutePrefix, ...]:
        """Return the versions as routers match them."""
        key = (self.mark, draft.holders)
        if self._routed == key:
            return self.routes
        self._routed = key
        made = tuple(
            route_prefix_of(
                self.prefix,
                version,
                [each.candidate for each in draft.holders.get(version.id, ())],
                salted=bool(version.salt_digest),
            )
            for version in routed_versions(self.prefix, draft.holders)
        )
        if made != self.routes:
            self.routes = made
        return self.routes

    def holdings(self, stations: Sequence[Station], current: Version | None) -> tuple[Holding, ...]:
        """Return what chosen pods report of the declared version."""
        known, made = self._holdings, {}
        for station in stations:
            each = station.candidate
            state = None if current is None else each.reported.get(current.id)
            found = known.get(station)
            if found is None or found.state is not state or found.engine is not each.engine:
                new = Holding(each.pod.name, state, each.engine)
                found = found if found is not None and found == new else new
            made[station] = found
        self._holdings = made
        return tuple(made.values())


def _turns(stays: Sequence[Stay], place: Callable[[Stay], str]) -> Mapping[Stay, int]:
    """Return of each how many before it are at the same place."""
    seen: Counter[str] = Counter()
    turns = {}
    for each in stays:
        turns[each] = seen[place(each)]
        seen[place(each)] += 1
    return turns
