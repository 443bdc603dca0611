"""Which pods a resource selects, by what they can do for its model, and where they stand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from promptprefix.eligibility import Standing, obstacle
from promptprefix.resource import Problem
from promptprefix.roster import Company, Station
from promptprefix.selector import LabelSelector

Load: TypeAlias = tuple[int, int, int]
"""Order of pods in which room is looked for: the most free blocks, the fewest prefixes, the tie."""


@dataclass(frozen=True, eq=False)
class Circle:
    """The pods that a selector selects, for a model, in the order of their names."""

    model: str
    selected: Sequence[Station]
    standing: Mapping[Station, Standing]
    eligible: Sequence[Station]
    obstacles: Sequence[tuple[Station, Problem]]
    block_sizes: frozenset[int]

    @property
    def connected(self) -> bool:
        """Whether all sidecars are."""
        return all(each.candidate.connected for each in self.selected)


class Circles:
    """The circles of all resources, kept as long as the pods stand as they do."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], dict[Station, tuple[Mapping[str, str], bool]]] = {}
        self._selected: dict[tuple[str, str], tuple[Company, int, list[Station]]] = {}
        self._circles: dict[tuple[str, str, str], tuple[Sequence[Station], int, Circle]] = {}
        self._used: set[tuple[str, str]] = set()
        self._asked: set[tuple[str, str, str]] = set()

    def circle(
        self, namespace: str, company: Company, key: str, selector: LabelSelector, model: str
    ) -> Circle:
        """Return the circle of a resource; ``key`` is the text of its selector."""
        selected = self._select((namespace, key), company, selector)
        place = (namespace, key, model)
        self._asked.add(place)
        found = self._circles.get(place)
        if found is not None and found[0] is selected and found[1] == company.standings:
            return found[2]
        made = _circle(selected, model)
        self._circles[place] = (selected, company.standings, made)
        return made

    def prune(self) -> None:
        """Forget the circles that nobody has asked for since the last time."""
        for place in self._circles.keys() - self._asked:
            del self._circles[place]
        for key in self._selected.keys() - self._used:
            del self._selected[key]
            del self._labels[key]
        self._used.clear()
        self._asked.clear()

    def _select(
        self, key: tuple[str, str], company: Company, selector: LabelSelector
    ) -> list[Station]:
        self._used.add(key)
        found = self._selected.get(key)
        if found is not None and found[0] is company and found[1] == company.standings:
            return found[2]
        known = self._labels.get(key, {})
        now: dict[Station, tuple[Mapping[str, str], bool]] = {}
        selected = []
        for station in company.in_order:
            labels = station.candidate.pod.labels
            read = known.get(station)
            if read is None or read[0] is not labels:
                read = (labels, selector.matches(labels))
            now[station] = read
            if read[1] and not station.candidate.pod.leaving:
                selected.append(station)
        self._labels[key] = now
        self._selected[key] = (company, company.standings, selected)
        return selected


def _circle(selected: Sequence[Station], model: str) -> Circle:
    standing = {station: station.candidate.standing(model) for station in selected}
    eligible = [station for station in selected if standing[station] is Standing.ELIGIBLE]
    found = (
        (station, obstacle(station.candidate, model))
        for station in selected
        # Pods that decode are not meant to hold anything, unless no other pod can.
        if standing[station] is not Standing.ELIGIBLE
        and (standing[station] is not Standing.DECODES or not eligible)
    )
    return Circle(
        model=model,
        selected=selected,
        standing=standing,
        eligible=eligible,
        obstacles=[(station, problem) for station, problem in found if problem is not None],
        block_sizes=frozenset(
            engine.block_size for each in eligible if (engine := each.candidate.engine) is not None
        ),
    )


class Shelf:
    """Pods of one zone, those with the most room first."""

    def __init__(self, stations: Sequence[Station]) -> None:
        self._heap = [(*load_of(station), index, station) for index, station in enumerate(stations)]
        heapq.heapify(self._heap)

    def find(
        self, fits: Callable[[Station], bool], need: int, crowd: Mapping[str, int]
    ) -> Station | None:
        """Return the first pod that ``fits``; those of a node without any of it come first.

        ``need`` is what it takes at least; ``crowd`` counts by node.
        """
        heap = self._heap
        passed: list[tuple[int, int, int, int, Station]] = []
        best: Station | None = None
        while heap:
            entry = heap[0]
            station = entry[4]
            load = load_of(station)
            if entry[:3] != load:
                heapq.heapreplace(heap, (*load, entry[3], station))
                continue
            if need and -load[0] < need:
                break
            if fits(station) and (
                best is None or crowd.get(station.node, 0) < crowd.get(best.node, 0)
            ):
                best = station
                if not crowd.get(station.node, 0):
                    break
            passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return best


def load_of(station: Station) -> Load:
    """Return where a pod stands in the order in which room is looked for."""
    ledger = station.ledger
    return -ledger.free, len(ledger.claims), station.tie
