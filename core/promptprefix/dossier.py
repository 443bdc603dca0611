"""What the planner remembers of one resource between two plans.

All of it follows from the resource, the pods' reports and the clock; it is only worked out again
when one of these says something new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from promptprefix.circles import Circle
from promptprefix.conditions import Holding, Outlook
from promptprefix.demand import Demand, Evidence, demand, let_go
from promptprefix.draft import Draft, Tenure
from promptprefix.eligibility import Standing
from promptprefix.fleet import Prefix, Size, Snapshot
from promptprefix.heads import NOTHING, Families, Footprint, Head
from promptprefix.notes import Notes
from promptprefix.resource import OnIdle, PromptPrefixStatus
from promptprefix.roster import Company, Station, tie_of
from promptprefix.routes import route_prefix_of, routed_versions
from promptprefix.sizes import Remembered, Sizes, heads_of, sizes_of
from promptprefix.stays import Stay
from promptprefix.tenure import declared, sole
from promptprefix.windows import Calendar
from promptprefix.wire import Phase, Placement, PlacementState, RoutePrefix

_STAYING = (Standing.ELIGIBLE, Standing.UNHEALTHY, Standing.ASLEEP)


class Dossier:
    """Notes on one resource, for as long as it is the same."""

    def __init__(self, prefix: Prefix) -> None:
        spec = prefix.spec
        self.prefix = prefix
        self.selector = spec.pods.selector.model_dump_json() if spec is not None else ""
        self.current = declared(prefix)
        self._model = spec.model if spec is not None else ""
        self.versions = tuple(v for v in (prefix.version, *prefix.earlier) if v is not None)
        self.sole = sole(prefix)
        salted = frozenset(v.id for v in self.versions if prefix.salted(v))
        self.notes = Notes(prefix.uid, self.versions, self.current, salted)
        self.heads: tuple[Head, ...] = ()
        self.outlook: Outlook | None = None
        self.status: PromptPrefixStatus | None = None
        self.told: tuple[object, ...] = ()
        self._tie = tie_of(prefix.uid)
        self.sizes: tuple[tuple[Size, ...], ...] = ()
        self._remembered: tuple[object, ...] = ()
        self._let_go = let_go(prefix.conditions)
        uses = (at for v in self.versions for at in (v.last_matched, v.used) if at is not None)
        self._latest = max(uses, default=None)
        self._used = self._latest
        self._routes: tuple[RoutePrefix, ...] = ()
        self._routed: tuple[object, ...] = ()
        self._asked: tuple[Evidence, datetime, Demand] | None = None
        self._families: Families | None = None
        self._printed: tuple[Head, ...] = ()
        self._prints: tuple[Footprint, ...] = ()
        self._ground: tuple[object, ...] = ()
        self._circle: Circle | None = None
        self._stays: dict[Station, Stay] = {}
        self._in_order: Sequence[Stay] = []
        self._placements: dict[tuple[object, ...], Placement] = {}

    def read(self, company: Company, remembered: Remembered) -> None:
        """Read what the pods report of it and have reported of its sizes, if that is news."""
        told = tuple(remembered.get(version.id) for version in self.versions)
        if not self.notes.read(company) and told == self._remembered:
            return
        self._remembered = told
        known = [self._latest] if self._latest is not None else []
        self._used = max((*known, *self.notes.matched.values()), default=None)
        sizes = tuple(sizes_of(version, company, remembered) for version in self.versions)
        if sizes != self.sizes:
            self.sizes = sizes
            self.heads = tuple(heads_of(self.prefix, company, remembered))

    def demand(self, snapshot: Snapshot, now: datetime, calendar: Calendar) -> Demand:
        """Return whether it is to be held.

        What was let go stays so until its pods have said whether they count its matches, and as
        long as a router is to tell of them, whether it does or not.
        """
        namespace = self.prefix.namespace
        used = self._used
        if used is not None and used > now:
            used = now
        notes = self.notes
        awaited = notes.unheard or namespace in snapshot.silent
        visible = namespace in snapshot.routed or notes.counted or (self._let_go and awaited)
        if self._asked is not None:
            asked, since, answer = self._asked
            fresh = since <= now and (answer.wake_at is None or now < answer.wake_at)
            if fresh and asked.last_matched == used and asked.visible == visible:
                return answer
        evidence = Evidence(used, visible)
        answer = demand(self.prefix, evidence, now, calendar)
        if self._asked is not None and answer == self._asked[2]:
            answer = self._asked[2]
        self._asked = (evidence, now, answer)
        return answer

    def stays(self, circle: Circle, sizes: Sizes, families: Families, held: bool) -> Sequence[Stay]:
        """Return the pods that may keep it, those that should stay first.

        It is the same object as before as long as it says the same.
        """
        stale = self.notes.stale
        self.notes.stale = set()
        if families is not self._families or self.heads is not self._printed:
            self._families, self._printed = families, self.heads
            self._prints = tuple(families.footprint(head) for head in self.heads)
        ground = (self.sizes, self._prints, held)
        if ground != self._ground:
            self._ground = ground
            stale.update(self.notes.by_station, self._stays)
        elif circle is not self._circle:
            known, standing = self._stays, circle.standing
            for station in self.notes.by_station:
                stay = known.get(station)
                if standing.get(station) is not (stay.standing if stay is not None else None):
                    stale.add(station)
        self._circle = circle
        changed = False
        for station in stale:
            new = self._stay(station, circle, sizes, held)
            if self._stays.get(station) == new:
                continue
            changed = True
            if new is None:
                del self._stays[station]
            else:
                self._stays[station] = new
        if changed:
            self._in_order = self._ordered(list(self._stays.values()))
        return self._in_order

    def _stay(self, station: Station, circle: Circle, sizes: Sizes, held: bool) -> Stay | None:
        prefix, each = self.prefix, station.candidate
        standing = circle.standing.get(station)
        if standing not in _STAYING or standing is None or prefix.uid not in each.knows:
            return None
        cold, resting = prefix.uid not in each.warms, prefix.uid not in each.firm
        if not held:
            return Stay(station, standing, NOTHING, cold=cold)
        warm = (v for v in prefix.earlier if each.phase(v.id) is Phase.WARM)
        earlier = next(warm, None) if prefix.earlier else None
        before: Footprint | None = None
        if earlier is not None:
            before = sizes.of(prefix, earlier, station)
        if self.current is None:
            old = before is not None
            return Stay(station, standing, before or NOTHING, old=old, cold=cold, resting=resting)
        if before is not None and each.phase(self.current.id) is not Phase.WARM:
            return Stay(station, standing, before, old=True, cold=cold)
        room = sizes.of(prefix, self.current, station)
        failed = before is None and _failed(each.reported.get(self.current.id))
        return Stay(
            station, standing, room, second=before, cold=cold, resting=resting, failed=failed
        )

    def _ordered(self, stays: list[Stay]) -> Sequence[Stay]:
        """Order pods that hold it: the warm first, failed last, each zone and node in its turn."""
        spec = self.prefix.spec
        if spec is None or spec.replicas == "All":
            return sorted(stays, key=lambda each: each.station.order)
        ranked = sorted(stays, key=lambda each: (*each.rank, each.station.tie ^ self._tie))
        if len(ranked) == 1:
            return ranked
        crowd = _turns(ranked, lambda each: each.node)
        ranked.sort(key=lambda each: (*each.rank, crowd[each.station]))
        turn = _turns(ranked, lambda each: each.zone)
        ranked.sort(key=lambda each: (*each.rank, turn[each.station], crowd[each.station]))
        return ranked

    def placement(self, tenure: Tenure, priority: int, asked: Demand) -> Placement:
        """Return what a pod is told of a version that it holds."""
        release = None if asked.held else asked.release
        if tenure.measured:
            release = OnIdle.KEEP
        version = tenure.version
        key = (version.id, priority, tenure.pinning, release, tenure.retained)
        found = self._placements.get(key)
        if found is None:
            found = self._placements[key] = Placement(
                id=version.id,
                namespace=self.prefix.namespace,
                name=self.prefix.name,
                model=version.model or self._model,
                fingerprint=version.fingerprint,
                content_digest=version.content_digest,
                pinning=tenure.pinning,
                priority=priority,
                release=release,
                retained=tenure.retained,
                salted=self.prefix.salted(version),
            )
        return found

    def routes(self, draft: Draft) -> tuple[RoutePrefix, ...]:
        """Return the versions as routers match them."""
        key = (self.notes.route_mark, self.sizes, draft.holders)
        if self._routed == key:
            return self._routes
        self._routed = key
        digests = self.notes.digests
        sizes = dict(zip((version.id for version in self.versions), self.sizes, strict=False))
        made = []
        for version in routed_versions(self.prefix, draft.holders):
            warm = digests.get(version.id, {})
            holders = draft.holders.get(version.id, ())
            found = {warm[each] for each in holders if each in warm}
            made.append(route_prefix_of(self.prefix, version, found, sizes.get(version.id, ())))
        if tuple(made) != self._routes:
            self._routes = tuple(made)
        return self._routes

    def holdings(self, stations: Sequence[Station]) -> tuple[Holding, ...]:
        """Return what chosen pods report of the declared version."""
        known = self.notes.by_station
        return tuple(
            note.holding if (note := known.get(each)) is not None else _unknown(each)
            for each in stations
        )


def _failed(state: PlacementState | None) -> bool:
    """Whether a pod could not warm it; one that tries again keeps the reason."""
    if state is None:
        return False
    return state.phase is Phase.FAILED or (state.phase is Phase.WARMING and bool(state.reason))


def _unknown(station: Station) -> Holding:
    """Return a pod that says nothing of the resource."""
    each = station.candidate
    return Holding(each.pod.name, None, each.engine)


def _turns(stays: Sequence[Stay], place: Callable[[Station], str]) -> Mapping[Station, int]:
    """Return of each how many before it are at the same place."""
    seen: Counter[str] = Counter()
    turns = {}
    for each in stays:
        at = place(each.station)
        turns[each.station] = seen[at]
        seen[at] += 1
    return turns
