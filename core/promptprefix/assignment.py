"""Who gets room on which pods.

Resources are served by priority, then by age. All keep the pods that hold them already, as far as
the budgets go; what is missing goes to pods with room, spread over zones, then nodes, then load;
where no pod has room, prefixes of lower priority make it. So whoever is short of pods is short
because of prefixes of its own or higher priority, and a pod that comes moves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from promptprefix.budget import Claimant
from promptprefix.circles import Circle, Shelf, load_of
from promptprefix.demand import Demand
from promptprefix.eligibility import Standing
from promptprefix.fleet import Prefix, Version
from promptprefix.heads import Footprint
from promptprefix.resource import Pinning
from promptprefix.roster import Station
from promptprefix.sizes import Sizes

_WEIGHED = 8
"""So many pods on which others would have to go are weighed against each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Stay:
    """A pod that holds a prefix already, and the room that it would keep there.

    ``first`` is the room of the version that is served from it now; ``second`` that of the one
    before, if the first finds none. ``alone`` is the declared version's, where ``first`` is an
    earlier one's.
    """

    station: Station
    standing: Standing
    first: Footprint
    second: Footprint | None = None
    alone: Footprint | None = None


@dataclass(frozen=True, slots=True)
class Tenure:
    """A version on a pod. ``until``: when it is no longer kept, if clients don't send it."""

    version: Version
    pinning: Pinning
    retained: bool = False
    until: datetime | None = None


class Draft:
    """One resource in a plan that is being made.

    ``chosen`` are its pods, of which ``resting`` are asleep and not counted. ``olds`` are those
    that give room to an earlier version in the declared one's place, and whether the declared one
    alone would find room. What they hold is in ``tenures``, the same on all of them, or by pod in
    ``varied``; ``holders`` has the pods by the id of the version.
    """

    __slots__ = (
        "awaited",
        "chosen",
        "circle",
        "demand",
        "holders",
        "olds",
        "order",
        "prefix",
        "priority",
        "resting",
        "sizes",
        "stays",
        "taken",
        "tenures",
        "varied",
        "wanted",
    )

    def __init__(
        self,
        prefix: Prefix,
        priority: int,
        demand: Demand,
        circle: Circle | None,
        sizes: Sizes,
    ) -> None:
        self.prefix = prefix
        self.priority = priority
        self.order = order_of(prefix, priority)
        self.demand = demand
        self.circle = circle
        self.sizes = sizes
        self.stays: Sequence[Stay] = ()
        self.wanted = 0
        self.awaited = False
        self.resting = 0
        self.chosen: list[Station] = []
        self.taken: set[Station] = set()
        self.olds: dict[Station, bool] = {}
        self.tenures: Sequence[Tenure] = ()
        self.varied: dict[Station, Sequence[Tenure]] = {}
        self.holders: dict[str, list[Station]] = {}

    @property
    def missing(self) -> int:
        """On how many pods it is short."""
        return self.wanted - len(self.chosen) + self.resting

    @property
    def every(self) -> bool:
        """Whether it is wanted on all pods."""
        return self.prefix.spec is not None and self.prefix.spec.replicas == "All"

    def footprint(self, station: Station) -> Footprint:
        """Return the room that the declared version takes on a pod."""
        return self.sizes.declared(self.prefix, station)

    def choose(self, station: Station) -> None:
        """Take a pod that gave room."""
        self.chosen.append(station)
        self.taken.add(station)

    def lose(self, station: Station) -> None:
        """Leave a pod to others."""
        self.chosen.remove(station)
        self.taken.discard(station)
        self.olds.pop(station, None)


def order_of(prefix: Prefix, priority: int) -> tuple[int, float, str]:
    """Return the order in which resources are served: by priority, then by age."""
    return -priority, prefix.created.timestamp() if prefix.created else 0.0, prefix.uid


def assign(drafts: Sequence[Draft]) -> None:
    """Choose the pods of all drafts."""
    served = sorted(drafts, key=lambda draft: draft.order)
    for draft in served:
        if draft.circle is not None:
            _stay(draft, draft.circle)
    room = _Room()
    for draft in served:
        if draft.missing > 0 and not draft.awaited and draft.prefix.refusal is None:
            if draft.every:
                room.spread_over_all(draft)
            else:
                room.spread(draft)
    for draft in drafts:
        draft.chosen.sort(key=attrgetter("order"))


def _stay(draft: Draft, circle: Circle) -> None:
    """Keep the pods that hold it already, as far as they have room and are wanted."""
    spec = draft.prefix.spec
    if spec is None:
        return
    eligible = len(circle.eligible)
    wanted = spec.pods_wanted(eligible)
    if not draft.demand.held:
        limit = len(draft.stays) if draft.every else wanted
        draft.chosen = [stay.station for stay in draft.stays[:limit]]
        return
    if draft.every:
        for stay in draft.stays:
            if _take(draft, stay):
                wanted += stay.standing is Standing.UNHEALTHY
                draft.resting += stay.standing is Standing.ASLEEP
        draft.wanted = wanted
        return
    # An engine that restarts keeps its place only as long as no healthy pod can take it.
    draft.wanted = wanted
    healthy, recovering = wanted, max(0, wanted - eligible)
    for stay in draft.stays:
        if stay.standing is Standing.ELIGIBLE:
            if healthy > 0 and _take(draft, stay):
                healthy -= 1
        elif recovering > 0 and _take(draft, stay):
            recovering -= 1


def _take(draft: Draft, stay: Stay) -> bool:
    station = stay.station
    ledger = station.ledger
    alone = stay.alone is not None and ledger.fits(stay.alone)
    if ledger.take(draft, stay.first):
        if stay.alone is not None:
            draft.olds[station] = alone
    elif stay.second is not None and ledger.take(draft, stay.second):
        draft.olds[station] = False
    else:
        return False
    draft.chosen.append(station)
    return True


class _Room:
    """Looks for room, roomy pods first."""

    def __init__(self) -> None:
        self._shelves: dict[Circle, Mapping[str, Shelf]] = {}
        self._bounds: dict[Circle, int] = {}

    def spread_over_all(self, draft: Draft) -> None:
        """Place it on each eligible pod that has or makes room."""
        draft.taken = set(draft.chosen)
        for station in draft.circle.eligible if draft.circle is not None else ():
            if station in draft.taken:
                continue
            footprint = draft.footprint(station)
            if not station.ledger.take(draft, footprint):
                victims = station.ledger.victims(footprint, draft.priority)
                if victims is None:
                    continue
                self._displace(station, victims)
                station.ledger.take(draft, footprint)
            draft.choose(station)

    def spread(self, draft: Draft) -> None:
        """Place it on as many pods as are missing, or as there is room on."""
        draft.taken = set(draft.chosen)
        zones = Counter(station.zone for station in draft.chosen)
        nodes = Counter(station.node for station in draft.chosen)
        circle = draft.circle
        for _ in range(draft.missing if circle is not None else 0):
            station = self._roomy(draft, zones, nodes) or self._cleared(draft, zones, nodes)
            if station is None:
                return
            station.ledger.take(draft, draft.footprint(station))
            draft.choose(station)
            zones[station.zone] += 1
            nodes[station.node] += 1

    def _roomy(
        self, draft: Draft, zones: Mapping[str, int], nodes: Mapping[str, int]
    ) -> Station | None:
        """Return a pod that has room, from a zone with the fewest of its pods."""
        shelves = self._shelves_of(draft)
        least = self._least(draft)

        def fits(station: Station) -> bool:
            return station not in draft.taken and station.ledger.fits(draft.footprint(station))

        by_count: dict[int, list[Shelf]] = {}
        for zone, shelf in shelves.items():
            by_count.setdefault(zones.get(zone, 0), []).append(shelf)
        for count in sorted(by_count):
            found = [
                station
                for shelf in by_count[count]
                if (station := shelf.find(fits, least, nodes)) is not None
            ]
            if found:
                return min(found, key=lambda each: (nodes.get(each.node, 0), load_of(each)))
        return None

    def _cleared(
        self, draft: Draft, zones: Mapping[str, int], nodes: Mapping[str, int]
    ) -> Station | None:
        """Return a pod after those of lower priority have made room there, doing least harm."""
        circle, priority = draft.circle, draft.priority
        least = self._least(draft)
        if circle is None or least > self._bounds.get(circle, least):
            return None
        rooms = [(each.ledger.room(priority), each) for each in circle.eligible]
        hopeful = [each for room, each in rooms if room >= least and each not in draft.taken]
        hopeful.sort(key=lambda each: (each.ledger.lowest, load_of(each)))
        ways = []
        for station in hopeful:
            victims = station.ledger.victims(draft.footprint(station), priority)
            if victims is not None:
                harm = max((each.priority for each in victims), default=-priority)
                ways.append((harm, len(victims), zones[station.zone], station, victims))
                if len(ways) == _WEIGHED:
                    break
        if not ways:
            self._bounds[circle] = max((room for room, _ in rooms), default=0)
            return None
        *_, station, victims = min(
            ways, key=lambda way: (*way[:3], nodes[way[3].node], load_of(way[3]))
        )
        self._displace(station, victims)
        return station

    def _displace(self, station: Station, victims: Sequence[Claimant]) -> None:
        for victim in victims:
            station.ledger.give_back(victim)
            if isinstance(victim, Draft):
                victim.lose(station)
        if victims:
            self._shelves.clear()

    def _shelves_of(self, draft: Draft) -> Mapping[str, Shelf]:
        circle = draft.circle
        if circle is None:
            return {}
        if circle not in self._shelves:
            by_zone: dict[str, list[Station]] = {}
            for station in circle.eligible:
                by_zone.setdefault(station.zone, []).append(station)
            self._shelves[circle] = {zone: Shelf(by_zone[zone]) for zone in sorted(by_zone)}
        return self._shelves[circle]

    def _least(self, draft: Draft) -> int:
        """Return how much room it takes at least, on any pod."""
        block_sizes = draft.circle.block_sizes if draft.circle is not None else ()
        return draft.sizes.least(draft.prefix, block_sizes)
