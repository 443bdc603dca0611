"""The planner's books of pods: who reports what, kept from plan to plan.

Everything here follows from the latest pods and reports alone, whatever came before; that it is
kept only saves reading again what did not change.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from promptprefix.accounts import Accounts
from promptprefix.budget import Extras, Ledger
from promptprefix.desired import Desired
from promptprefix.eligibility import Candidate, candidate
from promptprefix.fleet import Pod, Sidecar, Size, owner
from promptprefix.wire import EngineState, PlacementState, RouteEndpoint


def tie_of(uid: str) -> int:
    """Return a number that decides between equals, the same in every process."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8])


class Station:
    """A pod, for as long as it exists at one place, with its latest report.

    ``tie`` decides between pods that are equal in all else. ``ledger`` and ``extras``, what it is
    told and the ``endpoint`` are of the last plan, until the next has changed them.
    """

    __slots__ = (
        "candidate",
        "desired",
        "endpoint",
        "extras",
        "ledger",
        "name",
        "node",
        "order",
        "tie",
        "uid",
        "zone",
    )

    def __init__(self, each: Candidate) -> None:
        self.candidate = each
        self.uid = each.pod.uid
        self.name = each.pod.name
        self.order = (each.pod.namespace, each.pod.name, each.pod.uid)
        self.tie = tie_of(each.pod.uid)
        self.ledger = Ledger(tie=self.tie)
        self.extras = Extras(self.ledger)
        self.desired = Desired()
        self.endpoint: RouteEndpoint | None = None
        # Pods of unknown nodes are taken to be on different ones.
        self.zone, self.node = each.pod.zone, each.pod.node or each.pod.uid

    def is_at(self, pod: Pod) -> bool:
        """Whether it still runs where it did."""
        return (self.zone, self.node) == (pod.zone, pod.node or pod.uid)


class Company:
    """The pods of one namespace.

    ``mentioned`` has the pods that say anything of a resource, by its uid. ``sizes`` counts what is
    reported of how large versions are. Since the books were last closed, ``renewed`` are the pods
    of which anything is new, ``shifted`` those of them for which it may matter to whoever selects
    pods, and ``moved``, by resource, those that say something else of it or stand otherwise.
    """

    def __init__(self) -> None:
        self.stations: dict[str, Station] = {}
        self.mentioned: dict[str, dict[Station, None]] = {}
        self.sizes: dict[str, Counter[Size]] = {}
        self.renewed: set[Station] = set()
        self.shifted: set[Station] = set()
        self.moved: dict[str, dict[Station, None]] = {}
        self._sorted: Sequence[Station] | None = None

    @property
    def in_order(self) -> Sequence[Station]:
        """The pods by name."""
        if self._sorted is None:
            self._sorted = sorted(self.stations.values(), key=attrgetter("order"))
        return self._sorted

    def see(self, pod: Pod, sidecar: Sidecar | None, accounts: Accounts) -> None:
        """Take in a pod and its report, read together with those of other pods."""
        station = self.stations.get(pod.uid)
        if station is not None and not station.is_at(pod):
            self.forget(pod.uid)
            station = None
        made = candidate(pod, sidecar, accounts)
        if station is None:
            station = self.stations[pod.uid] = Station(made)
            self._sorted = None
            self._shift(station, made.accounts)
            self._enter(station, made, made.reported.values())
            return
        before = station.candidate
        station.candidate = made
        self.renewed.add(station)
        if _standing(before) != _standing(made):
            self._shift(station, before.accounts.keys() | made.accounts.keys())
        self._follow(station, before, made)

    def forget(self, uid: str) -> None:
        """Drop a pod that is gone."""
        station = self.stations.pop(uid)
        self._sorted = None
        self._shift(station, station.candidate.accounts)
        self._strike(station, station.candidate, station.candidate.reported.values())

    def close(self) -> None:
        """Take what is new as read."""
        self.renewed.clear()
        self.shifted.clear()
        self.moved.clear()

    def _shift(self, station: Station, uids: Iterable[str]) -> None:
        self.renewed.add(station)
        self.shifted.add(station)
        self._note(station, uids)

    def _follow(self, station: Station, before: Candidate, made: Candidate) -> None:
        """Bring the books from a pod's report before to the present one."""
        old, new = before.reported, made.reported
        if _essence(before.engine) != _essence(made.engine):
            self._strike(station, before, old.values())
            self._enter(station, made, new.values())
            self._note(station, before.accounts.keys() | made.accounts.keys())
            return
        moved = {
            id_
            for id_ in old.keys() | new.keys()
            if (one := old.get(id_)) is not (other := new.get(id_)) and one != other
        }
        if not moved and (before.told, before.resting) == (made.told, made.resting):
            return
        turned = (before.told ^ made.told) | (before.resting ^ made.resting)
        self._strike(station, before, [old[id_] for id_ in moved if id_ in old])
        self._enter(station, made, [new[id_] for id_ in moved if id_ in new])
        self._note(station, {owner(id_) for id_ in moved | turned})

    def _enter(self, station: Station, each: Candidate, states: Iterable[PlacementState]) -> None:
        mentioned, sizes = self.mentioned, self.sizes
        for uid in each.accounts:
            if (stations := mentioned.get(uid)) is None:
                stations = mentioned[uid] = {}
            stations[station] = None
        for state in states:
            if (size := size_of(state, each.engine)) is not None:
                if (counted := sizes.get(state.id)) is None:
                    counted = sizes[state.id] = Counter()
                counted[size] += 1

    def _strike(self, station: Station, each: Candidate, states: Iterable[PlacementState]) -> None:
        for uid in each.accounts:
            stations = self.mentioned[uid]
            del stations[station]
            if not stations:
                del self.mentioned[uid]
        for state in states:
            if (size := size_of(state, each.engine)) is not None:
                counted = self.sizes[state.id]
                counted[size] -= 1
                if not counted[size]:
                    del counted[size]
                if not counted:
                    del self.sizes[state.id]

    def _note(self, station: Station, uids: Iterable[str]) -> None:
        moved = self.moved
        for uid in uids:
            if (stations := moved.get(uid)) is None:
                stations = moved[uid] = {}
            stations[station] = None


def size_of(state: PlacementState, engine: EngineState | None) -> Size | None:
    """Return how large a version is by a pod's report; None if the pod doesn't say."""
    if engine is None or engine.block_size <= 0 or state.tokens <= 0:
        return None
    return engine.block_size, state.tokens, state.heads


class Roster:
    """The pods of all namespaces."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Pod, Sidecar | None]] = {}
        self._companies: dict[str, Company] = {}
        self._nobody = Company()

    @property
    def companies(self) -> Mapping[str, Company]:
        """The namespaces that have pods."""
        return self._companies

    def company(self, namespace: str) -> Company:
        """Return the pods of a namespace; it may have none."""
        return self._companies.get(namespace, self._nobody)

    def see(self, pods: Sequence[Pod], sidecars: Mapping[str, Sidecar]) -> None:
        """Take in all pods and reports of this moment."""
        accounts = Accounts()
        for pod in pods:
            sidecar = sidecars.get(pod.uid)
            known = self._seen.get(pod.uid)
            if known is not None:
                same = known[0] is pod or known[0] == pod
                if same and (known[1] is sidecar or _alike(known[1], sidecar)):
                    continue
                if known[0].namespace != pod.namespace or known[0].name != pod.name:
                    self._forget(pod.uid)
            self._seen[pod.uid] = (pod, sidecar)
            self._companies.setdefault(pod.namespace, Company()).see(pod, sidecar, accounts)
        if len(self._seen) > len(pods):
            for uid in self._seen.keys() - {pod.uid for pod in pods}:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        namespace = self._seen.pop(uid)[0].namespace
        company = self._companies[namespace]
        company.forget(uid)
        if not company.stations:
            del self._companies[namespace]


def _alike(one: Sidecar | None, other: Sidecar | None) -> bool:
    """Whether a sidecar has reported nothing and was told nothing since."""
    if one is None or other is None:
        return one is other
    if one.silent != other.silent:
        return False
    return one.state is other.state and (one.told, one.resting) == (other.told, other.resting)


def _standing(each: Candidate) -> tuple[object, ...]:
    """Return all on which it depends who may hold something there."""
    pod, engine = each.pod, each.engine
    place = (pod.labels, pod.leaving, pod.decodes, pod.zone, pod.node)
    if engine is None:
        return place
    return (*place, each.silent, engine.healthy, engine.asleep, engine.block_size, each.models)


def _essence(engine: EngineState | None) -> tuple[object, ...]:
    """Return all of a report of an engine on which a plan or a status depends."""
    if engine is None:
        return ()
    return (
        engine.healthy,
        engine.asleep,
        engine.models,
        engine.block_size,
        engine.blocks_total,
        engine.budget_blocks,
        engine.capabilities,
        engine.soft_reason,
        engine.offload_tier,
    )
