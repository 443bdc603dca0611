"""Looking for pods with room, for those who are on fewer than they are wanted on."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from operator import attrgetter

from promptprefix.budget import Claimant
from promptprefix.circles import Circle, Shelf, load_of, weight_of
from promptprefix.draft import Draft
from promptprefix.roster import Station

_WEIGHED = 8
"""So many pods on which others would have to go are weighed against each other."""


class Room:
    """Looks for room for those who are short of it: on roomy pods first."""

    def __init__(self) -> None:
        self._shelves: dict[Circle, Mapping[str, Shelf]] = {}
        self._weighed: dict[Circle, Shelf] = {}
        self._bounds: dict[Circle, int] = {}
        self._queue: list[tuple[tuple[int, float, str], Draft]] = []
        self._queued: set[Draft] = set()

    def fill(self, short: Iterable[Draft]) -> None:
        """Serve them in their order, and then those who made room for them."""
        for draft in short:
            self._wait(draft)
        while self._queue:
            _, draft = heapq.heappop(self._queue)
            circle = draft.circle
            if circle is None or draft.missing <= 0 or not draft.open or self._shut(draft, circle):
                continue
            found = self._on_all if draft.every else self._spread
            draft.choose(found(draft, circle))

    def stand_in(self, drafts: Iterable[Draft]) -> None:
        """Try those who could not be warmed somewhere on other pods that have free room."""
        for draft in sorted(drafts, key=attrgetter("order")):
            if draft.circle is None:
                continue
            search = _Search(draft, draft.circle)
            for _ in range(draft.stand_ins):
                station = search.roomy(self._shelves_of(draft.circle))
                if station is None:
                    break
                station.ledger.take(draft, draft.sizes.declared(station))
                search.take(station)
            draft.choose(search.chosen)

    def _wait(self, draft: Draft) -> None:
        if draft not in self._queued:
            self._queued.add(draft)
            heapq.heappush(self._queue, (draft.order, draft))

    def _on_all(self, draft: Draft, circle: Circle) -> list[Station]:
        """Place it on each eligible pod that has or makes room."""
        chosen = []
        priority, least = draft.priority, _least(draft, circle)
        for station in circle.eligible:
            ledger = station.ledger
            if station in draft.claims or (ledger.free < least and ledger.room(priority) < least):
                continue
            footprint = draft.sizes.declared(station)
            if not ledger.take(draft, footprint):
                if not draft.sized:
                    continue
                victims = ledger.victims(footprint, priority)
                if victims is None:
                    continue
                self._displace(station, victims)
                ledger.take(draft, footprint)
            self._weigh(station)
            chosen.append(station)
        if not chosen:
            self._bound(draft, circle)
        return chosen

    def _spread(self, draft: Draft, circle: Circle) -> list[Station]:
        """Place it on as many pods as are missing, or as there is room on."""
        search = _Search(draft, circle)
        for _ in range(draft.missing):
            station = search.roomy(self._shelves_of(circle)) or self._cleared(search)
            if station is None:
                break
            station.ledger.take(draft, draft.sizes.declared(station))
            self._weigh(station)
            search.take(station)
        return search.chosen

    def _cleared(self, search: _Search) -> Station | None:
        """Return a pod after those of lower priority have made room there, doing least harm."""
        if not search.draft.sized:
            return None
        if search.circle not in self._weighed:
            self._weighed[search.circle] = Shelf(search.circle.eligible, weight_of)
        found = search.clearable(self._weighed[search.circle])
        if found is None:
            self._bound(search.draft, search.circle)
            return None
        station, victims = found
        self._displace(station, victims)
        return station

    def _bound(self, draft: Draft, circle: Circle) -> None:
        """Note the most room that there is for its priority.

        No later search finds more: room only goes to those who are served before.
        """
        rooms = [each.ledger.room(draft.priority) for each in circle.eligible]
        self._bounds[circle] = max(0, *rooms) if rooms else 0

    def _shut(self, draft: Draft, circle: Circle) -> bool:
        """Whether it is plain that no pod has room for it."""
        if circle not in self._bounds:
            if draft.every:
                return False
            self._bound(draft, circle)
        return _least(draft, circle) > self._bounds[circle]

    def _displace(self, station: Station, victims: Sequence[Claimant]) -> None:
        for victim in victims:
            if isinstance(victim, Draft):
                victim.lose(station)
                self._wait(victim)
        if victims:
            for shelves in self._shelves.values():
                if (shelf := shelves.get(station.zone)) is not None:
                    shelf.renew(station)
            self._weigh(station)

    def _weigh(self, station: Station) -> None:
        for shelf in self._weighed.values():
            shelf.renew(station)

    def _shelves_of(self, circle: Circle) -> Mapping[str, Shelf]:
        if circle not in self._shelves:
            by_zone: dict[str, list[Station]] = {}
            for station in circle.eligible:
                by_zone.setdefault(station.zone, []).append(station)
            self._shelves[circle] = {
                zone: Shelf(by_zone[zone], load_of) for zone in sorted(by_zone)
            }
        return self._shelves[circle]


class _Search:
    """Looks for pods for one prefix. ``least`` is how much room it takes at least, on any."""

    def __init__(self, draft: Draft, circle: Circle) -> None:
        self.draft = draft
        self.circle = circle
        self.least = _least(draft, circle)
        self.chosen: list[Station] = []
        self._taken = set(draft.claims)
        self._zones = Counter(station.zone for station in draft.claims)
        self._nodes = Counter(station.node for station in draft.claims)

    def take(self, station: Station) -> None:
        """Count a pod that was found."""
        self.chosen.append(station)
        self._taken.add(station)
        self._zones[station.zone] += 1
        self._nodes[station.node] += 1

    def roomy(self, shelves: Mapping[str, Shelf]) -> Station | None:
        """Return a pod that has room; silent ones come last."""
        if self.circle.silent and (found := self._roomy(shelves, self._fits_and_asks)) is not None:
            return found
        return self._roomy(shelves, self._fits)

    def _roomy(
        self, shelves: Mapping[str, Shelf], fits: Callable[[Station], bool]
    ) -> Station | None:
        """Return a pod that ``fits``, from a zone with the fewest of its pods."""
        by_count: dict[int, list[Shelf]] = {}
        for zone, shelf in shelves.items():
            by_count.setdefault(self._zones.get(zone, 0), []).append(shelf)
        for count in sorted(by_count):
            found = [
                station
                for shelf in by_count[count]
                if (station := shelf.find(fits, self.least, self._nodes)) is not None
            ]
            if found:
                return min(found, key=lambda each: (self._nodes.get(each.node, 0), load_of(each)))
        return None

    def clearable(self, shelf: Shelf) -> tuple[Station, Sequence[Claimant]] | None:
        """Return a pod on which others of lower priority can make room, and who they are.

        None has room as it is. On the ``shelf`` those come first whose holders are the least
        important.
        """
        priority, least = self.draft.priority, self.least
        ways = []
        with closing(shelf.in_order()) as stations:
            for station in stations:
                ledger = station.ledger
                if ledger.lowest >= priority:
                    break
                if station in self._taken or ledger.room(priority) < least:
                    continue
                victims = ledger.victims(self.draft.sizes.declared(station), priority)
                if victims is not None:
                    harm = max((each.priority for each in victims), default=-priority)
                    crowd = (self._zones[station.zone], self._nodes[station.node])
                    key = (harm, len(victims), *crowd, load_of(station))
                    ways.append((key, (station, victims)))
                    if len(ways) == _WEIGHED:
                        break
        return min(ways, key=lambda way: way[0])[1] if ways else None

    def _fits_and_asks(self, station: Station) -> bool:
        return not station.candidate.silent and self._fits(station)

    def _fits(self, station: Station) -> bool:
        footprint = self.draft.sizes.declared(station)
        return station not in self._taken and station.ledger.fits(footprint)


def _least(draft: Draft, circle: Circle) -> int:
    """Return the room that it takes at least, on any pod."""
    return draft.sizes.least(circle.block_sizes)
