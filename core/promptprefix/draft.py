"""One resource's part of a plan: the pods that it keeps, gets and loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from promptprefix.circles import Circle
from promptprefix.demand import ALWAYS, Demand
from promptprefix.eligibility import Standing
from promptprefix.fleet import Prefix, Version
from promptprefix.heads import NOTHING, Footprint
from promptprefix.resource import Pinning
from promptprefix.roster import Station
from promptprefix.sizes import Sizes
from promptprefix.stays import SPARE, Quota, Stay, Stays
from promptprefix.wire import Placement


class Tenure(NamedTuple):
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
    told. ``touched``: it may be on other pods than when `moves` was asked last. ``asked`` is all
    that decides, beside the room, on which pods it is to be.
    """

    __slots__ = (
        "_before",
        "_kept",
        "_quota",
        "_reranked",
        "_synced",
        "_taken",
        "_turned",
        "asked",
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
        "replicas",
        "resting",
        "rests",
        "settled",
        "sizes",
        "stays",
        "tenures",
        "touched",
        "until",
        "varied",
        "wanted",
    )

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix
        self.rank = (prefix.name, prefix.uid)
        self.replicas: int | str = 0
        self.priority = 0
        self.order = (0, 0.0, prefix.uid)
        self.demand = ALWAYS
        self.circle: Circle | None = None
        self.sizes = Sizes(prefix, {})
        self.stays = Stays()
        self.asked: tuple[object, ...] = ()
        self.wanted = self.resting = 0
        self.awaited = False
        self.chosen: list[Station] = []
        self.claims: dict[Station, Footprint] = {}
        self.olds: frozenset[Station] = frozenset()
        self.failed: frozenset[Station] = frozenset()
        self.common: tuple[Placement, ...] = ()
        self.varied: dict[Station, tuple[Placement, ...]] = {}
        self.tenures: dict[Station, tuple[Tenure, ...]] = {}
        self.settled: tuple[datetime, tuple[object, ...]] | None = None
        self.until: datetime | None = None
        self.holders: Mapping[str, Sequence[Station]] = {}
        self.measuring: Station | None = None
        self.measured: tuple[Placement, ...] = ()
        self.rests = False
        self.touched = False
        self._kept: Mapping[Station, Stay] = {}
        self._synced: tuple[object, ...] | None = None
        self._quota = Quota(False, 0, 0)
        self._taken: dict[Station, Stay] = {}
        self._reranked = False
        self._before: dict[Station, Footprint | None] = {}
        self._turned: frozenset[Station] = frozenset()

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
        return self.sizes.sized

    @property
    def every(self) -> bool:
        """Whether it is wanted on all pods."""
        return self.replicas == "All"

    @property
    def loose(self) -> bool:
        """Whether it is on other pods than those that it had and wanted to keep."""
        return self._synced is None

    def begin(self, prefix: Prefix, priority: int, demand: Demand, sizes: Sizes) -> None:
        """Begin the next plan: it asks for this now, and selects no pods until that is said."""
        self.prefix = prefix
        self.replicas = prefix.spec.replicas if prefix.spec is not None else 0
        self.demand = demand
        self.sizes = sizes
        self.circle = None
        self.awaited = False
        created = prefix.created.timestamp() if prefix.created else 0.0
        # They are served by priority, then by age.
        order = (-priority, created, prefix.uid)
        if order != self.order:
            self.priority, self.order = priority, order
            self.touched = self._reranked = True
            for station in self.claims:
                station.ledger.reckon(station.ledger.budget)

    def enter(self, circle: Circle) -> bool:
        """Go by the present circle; return whether it may be wanted on another number of pods."""
        before, self.circle = self.circle, circle
        if before is None or not isinstance(self.replicas, int):
            return True
        return len(before.eligible) < self.replicas or len(circle.eligible) < self.replicas

    def sync(self) -> None:
        """Claim room on all pods that it wants to keep, whether they have it or not.

        Those where it rests are left to `keep_in_turn`.
        """
        stays, before = self.stays, self._synced
        wanted, eligible = self._numbers()
        # A number of pods only depends on how many there are if these are too few.
        counted = min(wanted, eligible) if isinstance(self.replicas, int) else eligible
        key = (stays, stays.mark, wanted, counted, self.demand.held, self.replicas)
        if before == key:
            return
        self.touched = True
        if self.every and not stays.odd and before and before[0] is stays and not self.rests:
            self._follow(wanted)
        else:
            self._keep(wanted)
        stays.changed.clear()
        self._synced = key

    def _follow(self, wanted: int) -> None:
        """Claim room on all pods, where only some stays are others than they were."""
        changed, rooms = self.stays.changed, self.stays.by_station
        self.wanted, self.resting = wanted if self.demand.held else 0, 0
        gone = [each for each in changed if each in self.claims and each not in rooms]
        come = [each for each in changed if each not in self.claims and each in rooms]
        for station in changed:
            stay = rooms.get(station)
            self._claim(station, None if stay is None else stay.first)
        if come:
            self.chosen = sorted(self.claims, key=attrgetter("order"))
        elif gone:
            self.chosen = self.chosen.copy()
            for station in gone:
                self.chosen.remove(station)
        self.olds = self.failed = frozenset()

    def _keep(self, wanted: int) -> None:
        """Claim room on the pods that it wants to keep."""
        stays = self.stays.by_station
        kept = {each: stays[each] for each in self.stays.in_order if not stays[each].resting}
        self.rests = len(kept) < len(stays)
        if not self.every:
            quota = self._new_quota()
            kept = {station: stay for station, stay in kept.items() if quota.take(stay)}
        self._kept = kept
        self.wanted, self.resting = self._counts(wanted, kept.values())
        for station in self.claims.keys() - kept.keys():
            self._claim(station, None)
        for station, stay in kept.items():
            self._claim(station, stay.first)
        self.chosen = list(kept) if self.every else sorted(kept, key=attrgetter("order"))
        self.olds = frozenset(station for station, stay in kept.items() if stay.old)
        self.failed = frozenset(station for station, stay in kept.items() if stay.failed)

    def _claim(self, station: Station, room: Footprint | None) -> None:
        """Claim so much room on a pod, or none any longer."""
        held = self.claims.get(station)
        if held is room or held == room:
            return
        self._remember(station)
        if held is not None:
            station.ledger.give_back(self)
            del self.claims[station]
        if room is not None:
            station.ledger.force(self, room)
            self.claims[station] = room

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
        if spec is None or isinstance(self.replicas, int):
            return Quota(held, wanted, max(0, wanted - eligible))
        stays = self.stays.by_station.values()
        recovering = sum(stay.standing is not Standing.ELIGIBLE for stay in stays)
        more = spec.pods_wanted(eligible + recovering) - wanted
        return Quota(held, wanted, more) if held else Quota(held, wanted + more, 0)

    def _counts(self, wanted: int, kept: Iterable[Stay]) -> tuple[int, int]:
        """Return on how many pods it is wanted and on how many asleep.

        On all pods, or a share of them, means also on those that keep it while their engine
        restarts.
        """
        if not self.demand.held or isinstance(self.replicas, int):
            return wanted if self.demand.held else 0, 0
        standings = [stay.standing for stay in kept if stay.standing is not Standing.ELIGIBLE]
        return wanted + standings.count(Standing.UNHEALTHY), standings.count(Standing.ASLEEP)

    def keep_none(self) -> None:
        """Begin to `keep_in_turn` with no pods."""
        for station in self.claims:
            self._remember(station)
        self.claims, self._synced = {}, None
        self._quota, self._taken = self._new_quota(), {}
        self._count_taken()

    def might_rest(self) -> bool:
        """Whether there may be room where it rests, if need be by others of lower priority."""
        return any(
            stay.resting and (stay.second is not None or station.ledger.might(self, stay.first))
            for station, stay in self.stays.by_station.items()
        )

    def keep_synced(self) -> None:
        """Begin to `keep_in_turn` with those that `sync` has claimed."""
        self._quota, self._taken = self._new_quota(), dict(self._kept)
        for stay in self._taken.values():
            self._quota.take(stay)

    def keep_in_turn(self, *, resting: bool) -> Sequence[tuple[Station, Stay]]:
        """Keep the pods that have room and are wanted, those first that should stay first.

        Those where it rests have their turn when all of the same priority have kept the others.
        Returned are those that are wanted and have no room.
        """
        refused, taken = [], len(self._taken)
        for station in self.stays.in_order:
            stay = self.stays.by_station[station]
            if stay.resting is not resting or not (self.every or self._quota.may(stay)):
                continue
            if station.ledger.take(self, stay.first):
                kept = stay
            elif stay.second is not None and station.ledger.take(self, stay.second):
                kept = stay._replace(first=stay.second, second=None, old=True)
            else:
                refused.append((station, stay))
                continue
            self._quota.take(stay)
            self._taken[station] = kept
            self._remember(station)
            self.claims[station] = kept.first
        if len(self._taken) > taken:
            self._synced = None
            self._count_taken()
        return refused

    def _count_taken(self) -> None:
        self.chosen = sorted(self.claims, key=attrgetter("order"))
        taken = self._taken
        self.olds = frozenset(station for station, stay in taken.items() if stay.old)
        self.failed = frozenset(station for station, stay in taken.items() if stay.failed)
        self.wanted, self.resting = self._counts(self._numbers()[0], taken.values())

    def choose(self, stations: Sequence[Station]) -> None:
        """Take pods that gave room."""
        if not stations:
            return
        for station in stations:
            self._remember(station)
            self.claims[station] = station.ledger.claims[self]
        self.chosen = sorted(self.claims, key=attrgetter("order"))
        self._synced = None

    def lose(self, station: Station) -> None:
        """Leave a pod to others."""
        self._remember(station)
        station.ledger.give_back(self)
        del self.claims[station]
        self.chosen = [each for each in self.chosen if each is not station]
        self.olds -= {station}
        self.failed -= {station}
        self._synced = None

    def measure(self, station: Station, placement: Placement) -> None:
        """Be measured on a pod, and take no room there."""
        station.ledger.force(self, NOTHING)
        self.measuring, self.measured = station, (placement,)

    def end_measuring(self) -> None:
        """Be measured nowhere."""
        if self.measuring is not None:
            self.measuring.ledger.give_back(self)
            self.measuring = None

    def leave(self) -> Iterable[Station]:
        """Leave all pods, as the resource is gone; return those that it was on."""
        left = [*self.claims] if self.measuring is None else [*self.claims, self.measuring]
        self.end_measuring()
        for station in self.claims:
            station.ledger.give_back(self)
        self.claims = {}
        return left

    def moves(self) -> tuple[set[Station], frozenset[Station]]:
        """Return the pods on which its claims are others than when it was asked last.

        If others come before it now, or after it, that is on all. Also returned are those on which
        it does, or does no longer, give the room to an earlier version.
        """
        claims = self.claims
        moved = {
            station
            for station, room in self._before.items()
            if (claimed := claims.get(station)) is not room and claimed != room
        }
        if self._reranked:
            moved.update(claims)
        turned, self._turned = self._turned ^ self.olds, self.olds
        self._before = {}
        self.touched = self._reranked = False
        return moved, turned

    def _remember(self, station: Station) -> None:
        """Note what it claimed on a pod before this plan."""
        self.touched = True
        if station not in self._before:
            self._before[station] = self.claims.get(station)

    def told(self, station: Station) -> tuple[Placement, ...]:
        """Return what a pod is told of it."""
        if station is self.measuring:
            return self.measured
        if station not in self.claims:
            return ()
        return self.varied.get(station, ()) if self.prefix.earlier else self.common
