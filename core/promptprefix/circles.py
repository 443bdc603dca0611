"""Which pods a resource selects, by what they can do for its model, and where they stand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

from promptprefix.budget import Load
from promptprefix.eligibility import Standing, obstacle
from promptprefix.resource import Problem
from promptprefix.roster import Company, Station
from promptprefix.selector import LabelSelector


@dataclass(frozen=True, eq=False)
class Circle:
    """The pods that a selector selects, for a model, in the order of their names."""

    model: str
    selector: LabelSelector
    selected: Sequence[Station]
    standing: Mapping[Station, Standing]
    eligible: Sequence[Station]
    block_sizes: frozenset[int]

    @property
    def connected(self) -> bool:
        """Whether all sidecars are."""
        return all(each.candidate.connected for each in self.selected)

    @cached_property
    def silent(self) -> bool:
        """Whether some eligible pod is."""
        return any(each.candidate.silent for each in self.eligible)

    @cached_property
    def obstacles(self) -> Sequence[tuple[Station, Problem]]:
        """What keeps selected pods from holding the prefix."""
        # Pods that decode are not meant to hold anything, unless no other pod can.
        passed = {Standing.ELIGIBLE} | ({Standing.DECODES} if self.eligible else set())
        found = (
            (station, obstacle(station.candidate, self.model))
            for station in self.selected
            if self.standing[station] not in passed
        )
        return [(station, problem) for station, problem in found if problem is not None]


class Circles:
    """The circles of all resources, kept as long as the pods stand as they do."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Company, Circle]] = {}

    def circle(
        self, namespace: str, company: Company, key: str, selector: LabelSelector, model: str
    ) -> Circle:
        """Return the circle of a resource; ``key`` is the text of its selector."""
        place = (namespace, key, model)
        found = self._known.get(place)
        if found is not None and found[0] is company:
            return found[1]
        selected = [each for each in company.in_order if _selects(selector, each)]
        made = _circle(model, selector, selected, {})
        self._known[place] = (company, made)
        return made

    def follow(self) -> Mapping[Circle, Circle]:
        """Take in who stands otherwise now; return which circles took the places of others."""
        renewed = {}
        for place, (company, circle) in self._known.items():
            if company.shifted and (made := _renewed(circle, company)) is not None:
                renewed[circle] = made
                self._known[place] = (company, made)
        return renewed

    def keep(self, used: Container[Circle]) -> None:
        """Forget those that nobody uses."""
        gone = [place for place, (_, circle) in self._known.items() if circle not in used]
        for place in gone:
            del self._known[place]


def _renewed(circle: Circle, company: Company) -> Circle | None:
    """Return the circle of this moment; None if it is the same still."""
    gone, come = [], []
    for station in company.shifted:
        if station in circle.standing:
            gone.append(station)
        present = company.stations.get(station.candidate.pod.uid) is station
        if present and _selects(circle.selector, station):
            come.append(station)
    if not gone and not come:
        return None
    standing = dict(circle.standing)
    for station in gone:
        del standing[station]
    selected = [station for station in circle.selected if station in standing]
    if come:
        selected = sorted([*selected, *come], key=attrgetter("order"))
    return _circle(circle.model, circle.selector, selected, standing)


def _selects(selector: LabelSelector, station: Station) -> bool:
    pod = station.candidate.pod
    return not pod.leaving and selector.matches(pod.labels)


def _circle(
    model: str,
    selector: LabelSelector,
    selected: Sequence[Station],
    known: Mapping[Station, Standing],
) -> Circle:
    """Return the circle of the selected; of some it is known how they stand."""
    standing = {each: known.get(each) or each.candidate.standing(model) for each in selected}
    eligible = [each for each in selected if standing[each] is Standing.ELIGIBLE]
    sizes = {engine.block_size for each in eligible if (engine := each.candidate.engine)}
    return Circle(model, selector, selected, standing, eligible, frozenset(sizes))


load_of: Final[Callable[[Station], Load]] = attrgetter("ledger.load")
"""Where a pod stands in the order in which room is looked for."""

weight_of: Final[Callable[[Station], Load]] = attrgetter("ledger.weight")
"""Where a pod stands in the order in which room is made."""


class Shelf:
    """Pods in an order that changes while room is given away and made.

    `renew` is told of those that may come earlier than they did; that others come later is seen.
    """

    def __init__(self, stations: Sequence[Station], order: Callable[[Station], Load]) -> None:
        self._order = order
        self._heap = [(order(station), index, station) for index, station in enumerate(stations)]
        self._index = {station: index for _, index, station in self._heap}
        heapq.heapify(self._heap)

    def renew(self, station: Station) -> None:
        """Take in that a pod, which may be of another circle, may come earlier."""
        if (index := self._index.get(station)) is not None:
            heapq.heappush(self._heap, (self._order(station), index, station))

    def in_order(self) -> Generator[Station]:
        """Yield the pods; while somebody looks at them, none is renewed."""
        heap, order = self._heap, self._order
        passed: list[tuple[Load, int, Station]] = []
        try:
            while heap:
                present, index, station = entry = heap[0]
                if (load := order(station)) != present:
                    heapq.heapreplace(heap, (load, index, station))
                    continue
                if passed and passed[-1] == entry:
                    heapq.heappop(heap)
                    continue
                yield station
                passed.append(heapq.heappop(heap))
        finally:
            for entry in passed:
                heapq.heappush(heap, entry)

    def find(
        self, fits: Callable[[Station], bool], need: int, crowd: Mapping[str, int]
    ) -> Station | None:
        """Return the first pod that ``fits``; those of a node without any of it come first.

        ``need`` is what it takes at least; ``crowd`` counts by node. The roomiest come first.
        """
        best: Station | None = None
        with closing(self.in_order()) as stations:
            for station in stations:
                if need and station.ledger.free < need:
                    break
                if fits(station) and (
                    best is None or crowd.get(station.node, 0) < crowd.get(best.node, 0)
                ):
                    best = station
                    if not crowd.get(station.node, 0):
                        break
        return best
