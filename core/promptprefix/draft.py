"""One resource's part of a plan: the pods that it keeps, gets and loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from promptprefix.circles import Circle
from promptprefix.demand import ALWAYS, Demand
from promptprefix.eligibility import Standing
from promptprefix.fleet import Prefix, Version
from promptprefix.heads import NOTHING, Families, Footprint
from promptprefix.resource import Pinning
from promptprefix.roster import Station
from promptprefix.sizes import Sizes
from promptprefix.stays import SPARE, Quota, Stay
from promptprefix.wire import Placement


@dataclass(frozen=True, slots=True)
class Tenure:
    """A version on a pod. ``until``: when it is no longer kept, if clients don't send it.

    ``measured``: it is not to be held, but to be measured.
    """

    version: Version
    pinning: Pinning
    retained: bool = False
    until: datetime | None = None
    measured: bool = False


class Draft:
    """One resource in the plan that is being made; in between, in the one before.

    ``claims`` are its pods and the room that it has there, ``chosen`` the same pods by name, of
    which ``resting`` are asleep and not counted. ``olds`` are those that give the room to an
    earlier version in the declared one's place, ``failed`` those that could not warm it. What they
    are told is ``common`` to all of them, or ``varied`` by pod; ``holders`` has the pods by the id
    of the version. ``measuring`` is a pod that is told to measure it, and ``measured`` what it is
    told.
    """

    __slots__ = (
        "_kept",
        "_quota",
        "_synced",
        "_taken",
        "awaited",
        "chosen",
        "circle",
        "claims",
        "common",
        "demand",
        "failed",
        "holders",
        "measured",
        "measuring",
        "olds",
        "order",
        "prefix",
        "priority",
        "rank",
        "resting",
        "rests",
        "sizes",
        "stays",
        "until",
        "varied",
        "wanted",
    )

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix
        self.rank = (prefix.name, prefix.uid)
        self.priority = 0
        self.order = (0, 0.0, prefix.uid)
        self.demand = ALWAYS
        self.circle: Circle | None = None
        self.sizes = Sizes({}, Families(()))
        self.stays: Sequence[Stay] = ()
        self.wanted = 0
        self.awaited = False
        self.resting = 0
        self.chosen: list[Station] = []
        self.claims: dict[Station, Footprint] = {}
        self.olds: frozenset[Station] = frozenset()
        self.failed: frozenset[Station] = frozenset()
        self.common: tuple[Placement, ...] = ()
        self.varied: Mapping[Station, tuple[Placement, ...]] = {}
        self.until: datetime | None = None
        self.holders: Mapping[str, Sequence[Station]] = {}
        self._kept: tuple[tuple[object, ...], Sequence[Stay], tuple[int, int]] = ((), (), (0, 0))
        self.rests = False
        self.measuring: Station | None = None
        self.measured: tuple[Placement, ...] = ()
        self._synced: Sequence[Stay] | None = None
        self._quota = Quota(False, 0, 0)
        self._taken: list[Stay] = []

    @property
    def missing(self) -> int:
        """On how many pods it is short."""
        return self.wanted - len(self.chosen) + self.resting

    @property
    def stand_ins(self) -> int:
        """On how many pods more it is to be tried, because some could not warm it."""
        if self.every or not self.open or not self.demand.held or self.missing > 0:
            return 0
        return max(0, self.missing + min(len(self.failed), SPARE))

    @property
    def open(self) -> bool:
        """Whether pods may be added: it has a text, and all pods have been heard."""
        return not self.awaited and self.prefix.refusal is None

    @property
    def sized(self) -> bool:
        """Whether some engine has told how large the declared version is."""
        version = self.prefix.version
        return version is None or bool(self.sizes.measured(self.prefix, version))

    @property
    def every(self) -> bool:
        """Whether it is wanted on all pods."""
        return self.prefix.spec is not None and self.prefix.spec.replicas == "All"

    def begin(
        self,
        prefix: Prefix,
        priority: int,
        demand: Demand,
        circle: Circle | None,
        sizes: Sizes,
    ) -> None:
        """Begin the next plan."""
        self.prefix = prefix
        self.priority = priority
        self.order = order_of(prefix, priority)
        self.demand = demand
        self.circle = circle
        self.sizes = sizes
        self.stays = ()
        self.awaited = False

    def footprint(self, station: Station) -> Footprint:
        """Return the room that the declared version takes on a pod."""
        return self.sizes.declared(self.prefix, station)

    def sync(self, moved: set[Station]) -> None:
        """Claim room on all pods that it wants to keep, whether they have it or not.

        Those where it rests are left to `keep_in_turn`.
        """
        kept = self._wanted_stays()
        if kept is self._synced:
            return
        target = {stay.station: stay.first for stay in kept}
        for station in [each for each, room in self.claims.items() if target.get(each) != room]:
            station.ledger.give_back(self)
            del self.claims[station]
            moved.add(station)
        for station, room in target.items():
            if station not in self.claims:
                station.ledger.force(self, room)
                moved.add(station)
        self.claims = target
        self.chosen = sorted(target, key=attrgetter("order"))
        self.olds = frozenset(stay.station for stay in kept if stay.old)
        self.failed = frozenset(stay.station for stay in kept if stay.failed)
        self._synced = kept

    def _wanted_stays(self) -> Sequence[Stay]:
        """Return which pods it keeps if all have room; the same object as long as they are."""
        wanted, eligible = self._numbers()
        replicas = self.prefix.spec.replicas if self.prefix.spec is not None else 0
        # A number of pods only depends on how many there are if these are too few.
        counted = min(wanted, eligible) if isinstance(replicas, int) else eligible
        key = (self.stays, wanted, counted, self.demand.held, replicas)
        if self._kept[0] != key:
            kept = [stay for stay in self.stays if not stay.resting]
            self.rests = len(kept) < len(self.stays)
            if not self.every:
                quota = self._new_quota()
                kept = [stay for stay in kept if quota.take(stay)]
            self._kept = (key, kept, self._counts(wanted, kept))
            self._synced = None
        self.wanted, self.resting = self._kept[2]
        return self._kept[1]

    def _numbers(self) -> tuple[int, int]:
        """Return on how many pods it is wanted, and how many are eligible."""
        spec, circle = self.prefix.spec, self.circle
        if spec is None or circle is None:
            return 0, 0
        eligible = len(circle.eligible)
        return spec.pods_wanted(eligible), eligible

    def _new_quota(self) -> Quota:
        """Return on how many pods it stays; a share of pods counts those that recover, too."""
        spec, held = self.prefix.spec, self.demand.held
        wanted, eligible = self._numbers()
        if spec is None or isinstance(spec.replicas, int):
            return Quota(held, wanted, max(0, wanted - eligible))
        recovering = sum(stay.standing is not Standing.ELIGIBLE for stay in self.stays)
        more = spec.pods_wanted(eligible + recovering) - wanted
        return Quota(held, wanted, more) if held else Quota(held, wanted + more, 0)

    def _counts(self, wanted: int, kept: Sequence[Stay]) -> tuple[int, int]:
        """Return on how many pods it is wanted and on how many asleep.

        On all pods, or a share of them, means also on those that keep it while their engine
        restarts.
        """
        spec = self.prefix.spec
        if not self.demand.held or spec is None or isinstance(spec.replicas, int):
            return wanted if self.demand.held else 0, 0
        standings = [stay.standing for stay in kept]
        return wanted + standings.count(Standing.UNHEALTHY), standings.count(Standing.ASLEEP)

    def keep_none(self) -> None:
        """Begin to `keep_in_turn` with no pods."""
        self.claims, self._synced = {}, None
        self._quota, self._taken = self._new_quota(), []
        self._count_taken()

    def keep_synced(self) -> None:
        """Begin to `keep_in_turn` with those that `sync` has claimed."""
        self._quota, self._taken = self._new_quota(), list(self._kept[1])
        for stay in self._taken:
            self._quota.take(stay)

    def keep_in_turn(self, moved: set[Station], *, resting: bool) -> Sequence[Stay]:
        """Keep the pods that have room and are wanted, those first that should stay first.

        Those where it rests have their turn when all of the same priority have kept the others.
        Returned are those that are wanted and have no room.
        """
        refused, taken = [], len(self._taken)
        for stay in self.stays:
            if stay.resting is not resting or not (self.every or self._quota.may(stay)):
                continue
            if stay.station.ledger.take(self, stay.first):
                kept = stay
            elif stay.second is not None and stay.station.ledger.take(self, stay.second):
                kept = replace(stay, first=stay.second, second=None, old=True)
            else:
                refused.append(stay)
                continue
            self._quota.take(stay)
            self._taken.append(kept)
            self.claims[stay.station] = kept.first
            moved.add(stay.station)
        if len(self._taken) > taken:
            self._synced = None
            self._count_taken()
        return refused

    def _count_taken(self) -> None:
        self.chosen = sorted(self.claims, key=attrgetter("order"))
        self.olds = frozenset(stay.station for stay in self._taken if stay.old)
        self.failed = frozenset(stay.station for stay in self._taken if stay.failed)
        self.wanted, self.resting = self._counts(self._numbers()[0], self._taken)

    def choose(self, stations: Sequence[Station], moved: set[Station]) -> None:
        """Take pods that gave room."""
        if not stations:
            return
        for station in stations:
            self.claims[station] = station.ledger.claims[self]
        self.chosen = sorted(self.claims, key=attrgetter("order"))
        self._synced = None
        moved.update(stations)

    def lose(self, station: Station, moved: set[Station]) -> None:
        """Leave a pod to others."""
        station.ledger.give_back(self)
        del self.claims[station]
        self.chosen = [each for each in self.chosen if each is not station]
        self.olds -= {station}
        self.failed -= {station}
        self._synced = None
        moved.add(station)

    def settle_alike(
        self,
        holders: Mapping[str, Sequence[Station]],
        placements: tuple[Placement, ...],
        moved: set[Station],
    ) -> None:
        """Hold the same on all pods."""
        self.holders, self.until = holders, None
        if self.varied or (placements is not self.common and placements != self.common):
            moved.update(self.claims)
            self.common, self.varied = placements, {}

    def settle(
        self,
        held: Mapping[Station, Sequence[Tenure]],
        placements: Mapping[Station, tuple[Placement, ...]],
        moved: set[Station],
    ) -> None:
        """Hold on each pod what is said of it."""
        holders: dict[str, list[Station]] = {}
        for station, on in held.items():
            if placements[station] != self.varied.get(station):
                moved.add(station)
            for each in on:
                if not each.measured:
                    holders.setdefault(each.version.id, []).append(station)
        ends = (each.until for on in held.values() for each in on)
        self.until = min((end for end in ends if end is not None), default=None)
        self.holders, self.common, self.varied = holders, (), placements

    def told(self, station: Station) -> tuple[Placement, ...]:
        """Return what a pod is told of it."""
        if station is self.measuring:
            return self.measured
        return self.varied.get(station, ()) if self.varied else self.common

    def measure(self, station: Station, placement: Placement, moved: set[Station]) -> None:
        """Be measured on a pod, and take no room there."""
        station.ledger.force(self, NOTHING)
        self.measuring, self.measured = station, (placement,)
        moved.add(station)

    def end_measuring(self, moved: set[Station]) -> None:
        """Be measured nowhere."""
        if self.measuring is not None:
            self.measuring.ledger.give_back(self)
            moved.add(self.measuring)
            self.measuring = None

    def leave(self, moved: set[Station]) -> None:
        """Leave all pods: the resource is gone."""
        for station in self.claims:
            station.ledger.give_back(self)
        moved.update(self.claims)


def order_of(prefix: Prefix, priority: int) -> tuple[int, float, str]:
    """Return the order in which resources are served: by priority, then by age."""
    return -priority, prefix.created.timestamp() if prefix.created else 0.0, prefix.uid
