"""What the planner remembers of one resource between two plans.

All of it follows from the resource, the pods' reports and the clock; it is only worked out again
when one of these says something new.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from promptprefix.accounts import Account
from promptprefix.circles import Circle
from promptprefix.conditions import Outlook
from promptprefix.demand import Demand, Evidence, demand, let_go
from promptprefix.draft import Draft, Tenure
from promptprefix.eligibility import Candidate, Standing
from promptprefix.fleet import Prefix, Size, Snapshot, Version
from promptprefix.heads import NOTHING, Families, Footprint, Head
from promptprefix.holdings import Crew, Holding, size_of
from promptprefix.notes import Notes
from promptprefix.resource import OnIdle, PromptPrefixStatus
from promptprefix.roster import Company, Station, tie_of
from promptprefix.routes import route_prefix_of, routed_versions
from promptprefix.sizes import Remembered, Sizes, head_of, sizes_of
from promptprefix.stays import Stay, Stays
from promptprefix.tenure import declared, sole
from promptprefix.windows import Calendar
from promptprefix.wire import Placement, RoutePrefix

_FEW = 32
"""So many changes of a long list are made one by one; it is sorted anew for more."""

_STAYING = (Standing.ELIGIBLE, Standing.UNHEALTHY, Standing.ASLEEP)


class Dossier:
    """Notes on one resource, for as long as it is the same.

    ``sizes`` are those that are reported of its versions, and ``room`` what they take by them.
    ``tie`` decides between pods that are equal in all else.
    """

    def __init__(self, prefix: Prefix, draft: Draft) -> None:
        spec = prefix.spec
        self.prefix = prefix
        self.draft = draft
        selector = prefix.selector
        self.selector = selector.model_dump_json() if selector is not None else ""
        self.current = declared(prefix)
        self._model = spec.model if spec is not None else ""
        self.versions = tuple(v for v in (prefix.version, *prefix.earlier) if v is not None)
        self.sole = sole(prefix)
        salted = frozenset(v.id for v in self.versions if prefix.salted(v))
        self.notes = Notes(prefix.uid, self.versions, self.current, salted)
        self.company: Company | None = None
        self.sizes: tuple[tuple[Size, ...], ...] = ()
        self.heads: tuple[Head, ...] = ()
        self.room = Sizes(prefix, {})
        self.outlook: Outlook | None = None
        self.status: PromptPrefixStatus | None = None
        self.told: tuple[object, ...] = ()
        self.routed: tuple[RoutePrefix, ...] = ()
        self._routed: tuple[object, ...] = ()
        self.tie = tie_of(prefix.uid)
        self._let_go = let_go(prefix.conditions)
        uses = (at for v in self.versions for at in (v.last_matched, v.used) if at is not None)
        self._latest = max(uses, default=None)
        self._used = self._latest
        self._asked: tuple[Evidence, datetime, Demand] | None = None
        self._known: Mapping[str, Mapping[Size, Footprint]] = {}
        self._ground: tuple[object, ...] = ()
        self.stays = Stays()
        self._placements: dict[tuple[object, ...], Placement] = {}

    def read(self, company: Company, remembered: Remembered) -> bool:
        """Read what the pods report of it and have reported of its sizes.

        Return whether other heads are reported.
        """
        self.company = company
        if self.notes.read(company):
            known = [self._latest] if self._latest is not None else []
            self._used = max((*known, *self.notes.matched.values()), default=None)
        sizes = tuple(sizes_of(version, company, remembered) for version in self.versions)
        if sizes == self.sizes:
            return False
        self.sizes = sizes
        told = zip(self.versions, sizes, strict=True)
        heads = tuple(
            head_of(self.prefix, version, size)
            for version, each in told
            for size in each
            if size[2]
        )
        same, self.heads = heads == self.heads, heads
        return not same

    def gauge(self, families: Families) -> bool:
        """Work out the room of all sizes that are told; return whether any is another."""
        known = {
            version.id: {
                size: families.footprint(head_of(self.prefix, version, size)) for size in each
            }
            for version, each in zip(self.versions, self.sizes, strict=False)
        }
        if known == self._known:
            return False
        self._known = known
        self.room = Sizes(self.prefix, known)
        return True

    def fresh(self, now: datetime) -> bool:
        """Whether the time alone changes nothing in the answer to whether it is to be held."""
        if self._asked is None:
            return False
        evidence, since, answer = self._asked
        if now == since:
            return True
        if now < since or (answer.wake_at is not None and now >= answer.wake_at):
            return False
        return evidence.last_matched == self._used

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
        evidence = Evidence(used, visible)
        if self._asked is not None:
            asked, since, answer = self._asked
            fresh = since <= now and (answer.wake_at is None or now < answer.wake_at)
            if fresh and asked == evidence:
                return answer
        answer = demand(self.prefix, evidence, now, calendar)
        if self._asked is not None and answer == self._asked[2]:
            answer = self._asked[2]
        self._asked = (evidence, now, answer)
        return answer

    def follow(self, circle: Circle, held: bool) -> None:
        """Bring ``stays`` to the present."""
        stale = self.notes.stale
        self.notes.stale = {}
        ground = (self.room, held)
        if ground != self._ground:
            self._ground = ground
            stale.update(dict.fromkeys(self.notes.by_station))
            stale.update(dict.fromkeys(self.stays.by_station))
        uid, changed = self.prefix.uid, []
        made: dict[Account, Stay | None] = {}
        for station in stale:
            stay, standing = None, circle.standing.get(station)
            account = station.candidate.accounts.get(uid)
            if account is not None and standing in _STAYING:
                if standing is not Standing.ELIGIBLE:
                    stay = self._stay(station, account, standing, held)
                elif account in made:
                    stay = made[account]
                else:
                    stay = made[account] = self._stay(station, account, standing, held)
            if self.stays.put(station, stay):
                changed.append(station)
        if changed:
            self._order(changed)

    def _stay(
        self, station: Station, account: Account, standing: Standing, held: bool
    ) -> Stay | None:
        """Return its stay on a pod, that on any such pod with this account."""
        if not account.knows:
            return None
        prefix, sizes = self.prefix, self.room
        cold, resting = not account.warm, not account.firm
        if not held:
            return Stay(standing, NOTHING, cold=cold)
        before: Footprint | None = None
        for earlier in prefix.earlier:
            if _warm(account, earlier):
                before = sizes.of(earlier, station)
                break
        if self.current is None:
            old = before is not None
            return Stay(standing, before or NOTHING, old=old, cold=cold, resting=resting)
        if before is not None and not _warm(account, self.current):
            return Stay(standing, before, old=True, cold=cold)
        room, reading = sizes.of(self.current, station), account.reading(self.current.id)
        failed = before is None and reading is not None and reading.failed
        return Stay(standing, room, second=before, cold=cold, resting=resting, failed=failed)

    def _order(self, changed: Sequence[Station]) -> None:
        """Order pods that hold it: the warm first, failed last, each zone and node in its turn."""
        spec, stays = self.prefix.spec, self.stays
        if spec is not None and spec.replicas != "All":
            stays.in_order = self._ranked(stays.by_station)
        elif len(changed) > _FEW:
            stays.in_order = sorted(stays.by_station, key=_by_name)
        else:
            for station in changed:
                _put_by_name(stays.in_order, station, station in stays.by_station)

    def _ranked(self, stays: Mapping[Station, Stay]) -> list[Station]:
        ranked = sorted(stays, key=lambda each: (*stays[each].rank, each.tie ^ self.tie))
        if len(ranked) <= 1:
            return ranked
        crowd = _turns(ranked, lambda each: each.node)
        ranked.sort(key=lambda each: (*stays[each].rank, crowd[each]))
        turn = _turns(ranked, lambda each: each.zone)
        ranked.sort(key=lambda each: (*stays[each].rank, turn[each], crowd[each]))
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

    def route(self) -> None:
        """Bring ``routed``, the versions as routers match them, to the present."""
        draft = self.draft
        key = (self.notes.route_mark, self.sizes, draft.holders)
        if self._routed == key:
            return
        self._routed = key
        digests = self.notes.digests
        sizes = dict(zip((version.id for version in self.versions), self.sizes, strict=False))
        made = []
        for version in routed_versions(self.prefix, draft.holders):
            warm = digests.get(version.id, {})
            found = _found(warm, draft.holders.get(version.id, ()))
            made.append(route_prefix_of(self.prefix, version, found, sizes.get(version.id, ())))
        if tuple(made) != self.routed:
            self.routed = tuple(made)

    def holdings(self, stations: Iterable[Station]) -> tuple[Holding, ...]:
        """Return what chosen pods report of the declared version."""
        return tuple([self._holding(each.candidate) for each in stations])

    def _holding(self, each: Candidate) -> Holding:
        id_ = "" if self.current is None else self.current.id
        return Holding(each.pod.name, each.reported.get(id_), each.engine)

    def crew(self, stations: Sequence[Station]) -> Crew:
        """Return what the status of a held prefix tells of chosen pods."""
        notes = self.notes
        warm, told = len(stations), stations
        rest, waiting = list[Station](), list[Station]()
        if not notes.sound.issuperset(stations):
            warm = len(notes.heated.intersection(stations))
            told = [each for each in stations if each in notes.heated] if warm else stations
            for station in stations:
                if station not in notes.sound:
                    (waiting if self._waits(station) else rest).append(station)
        return Crew(
            count=len(stations),
            warm=warm,
            unsound=self.holdings(rest),
            size=(0, 0) if len(waiting) == len(stations) else self._size(told),
            waiting=tuple([each.name for each in waiting]),
        )

    def _waits(self, station: Station) -> bool:
        """Whether a pod serves and says nothing of the declared version yet."""
        note = self.notes.by_station.get(station)
        if note is None:
            return station.candidate.serving
        return note.unsaid and note.account.manner.serving

    def _size(self, stations: Iterable[Station]) -> tuple[int, int]:
        return size_of(self._holding(each.candidate) for each in stations)


def _found(warm: Mapping[Station, str], holders: Sequence[Station]) -> Collection[str]:
    """Return the digests of what is warm on pods that should hold it."""
    digests = set(warm.values())
    if len(digests) > 1:
        return {digest for digest in map(warm.get, holders) if digest is not None}
    return () if warm.keys().isdisjoint(holders) else digests


def _by_name(station: Station) -> tuple[str, str, str]:
    return station.order


def _put_by_name(stations: list[Station], station: Station, stays: bool) -> None:
    """Put a pod in its place, or take it away."""
    at = bisect_left(stations, station.order, key=_by_name)
    # A pod that moved to another node has the name of the one that it was.
    while at < len(stations) and stations[at].order == station.order:
        if stations[at] is station:
            del stations[at]
            break
        at += 1
    if stays:
        stations.insert(at, station)


def _warm(account: Account, version: Version) -> bool:
    """Whether a pod reports a version warm."""
    reading = account.reading(version.id)
    return reading is not None and reading.warm


def _turns(stations: Sequence[Station], place: Callable[[Station], str]) -> Mapping[Station, int]:
    """Return of each how many before it are at the same place."""
    seen: Counter[str] = Counter()
    turns = {}
    for station in stations:
        at = place(station)
        turns[station] = seen[at]
        seen[at] += 1
    return turns
