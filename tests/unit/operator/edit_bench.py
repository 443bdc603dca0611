"""An operator, a resource that is edited, and two pods, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from promptprefix.fleet import DEFAULT_RETENTION, placement_id
from promptprefix.history import QUIET
from promptprefix.payload import Payload
from promptprefix.placement import Planner
from promptprefix.resource import Pinning, PromptPrefixStatus
from promptprefix.wire import (
    EngineState,
    Match,
    MatchReport,
    Phase,
    Placement,
    PlacementState,
    SidecarState,
)
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.controller import Controller
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.matches import Matches
from promptprefix_operator.measures import Measures
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import Routers
from promptprefix_operator.salts import Salts
from promptprefix_operator.settling import RECONNECT_S, Settling
from promptprefix_operator.sidecars import Sidecars

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PODS = ("p0", "p1")
IDLE_S = DEFAULT_RETENTION.idle.total_seconds()
ENGINE = EngineState(healthy=True, address="a", port=1, models=("m",), block_size=16)


def id_of(text: str) -> str:
    return placement_id("u", "m", Payload(systemInstructions=text).digest)


class Bench:
    """An operator, a resource and two pods; ``seconds`` have passed. ``spoilt`` pods warm nothing.

    ``ahead`` is by how many seconds the operator's clock is wrong.
    ``writes`` counts the statuses that differ from the one before.
    """

    def __init__(self) -> None:
        self.seconds = self.ahead = 0.0
        self.generation = 0
        self.writes = 0
        self.spec: dict[str, Any] = {}
        self.status: PromptPrefixStatus | None = None
        self.spoilt: set[str] = set()
        self.held: dict[str, tuple[PlacementState, ...]] = dict.fromkeys(PODS, ())
        self.restart()

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds + self.ahead)

    def restart(self) -> None:
        """Start an operator that knows only what is in the cluster."""
        wake = asyncio.Event()
        self.cluster = Cluster(wake.set)
        self.sidecars = Sidecars(lambda: self.seconds, 45, wake.set, lambda: self.now)
        self.publication = Publication(int(self.seconds) + 1)
        routers = Routers(lambda: self.seconds, wake.set)
        self.matches = Matches(lambda: self.now, routers, wake.set)
        self.controller = Controller(
            cluster=self.cluster,
            sidecars=self.sidecars,
            declarations=Declarations(
                lambda payload, **_: [], Salts(), matched=self.matches.latest
            ),
            publication=self.publication,
            matches=self.matches,
            routers=routers,
            measures=Measures(),
            planner=Planner,
            metrics=Metrics(),
            now=lambda: self.now,
            clock=lambda: self.seconds,
            wake=wake,
            resync_seconds=30,
            settling=Settling(lambda: self.seconds, lambda: None, RECONNECT_S),
        )
        for name in PODS:
            pod = {"uid": name, "namespace": "ml", "name": name, "labels": {"app": "v"}}
            self.cluster.see_pod({"metadata": pod, "status": {"podIP": "10.0.0.1"}})
        self.see()

    def see(self) -> None:
        """Show the operator the resource as it is stored."""
        if self.spec:
            metadata = {"uid": "u", "namespace": "ml", "name": "a", "generation": self.generation}
            status = self.status.model_dump(mode="json") if self.status is not None else None
            self.cluster.see_resource({"metadata": metadata, "spec": self.spec, "status": status})

    def edit(self, text: str) -> None:
        self.generation += 1
        self.spec = {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": text}},
        }
        self.see()

    def match(self, text: str) -> None:
        match = Match(id=id_of(text), count=1, at=self.seconds)
        self.matches.take(MatchReport(tenant="ml", sent=self.seconds, matches=(match,)))

    def step(self, pods: Collection[str] = PODS) -> None:
        """Let these pods report, the operator plan and write, and the pods obey."""
        for pod in pods:
            state = SidecarState(engine=ENGINE, placements=self.held[pod])
            self.sidecars.report(pod, state, self.publication.set_of(pod).revision)
        self.controller.step()
        status = self.controller.status("u")
        if status is not None and status != self.status:
            self.writes += 1
            self.status = status
            self.see()
        for pod in pods:
            self.held[pod] = tuple(self._obey(pod, each) for each in self.told(pod))

    def told(self, pod: str) -> tuple[Placement, ...]:
        return self.publication.set_of(pod).placements

    def _obey(self, pod: str, placement: Placement) -> PlacementState:
        before = next((each for each in self.held[pod] if each.id == placement.id), None)
        if before is not None and before.phase is Phase.WARM:
            return before
        assert not placement.retained, "what is kept is never fetched"
        warm = pod not in self.spoilt
        return PlacementState(
            id=placement.id,
            phase=Phase.WARM if warm else Phase.FAILED,
            reason="" if warm else "WarmFailed",
            tokens=64,
            pinned=Pinning.HARD if warm else Pinning.NONE,
            pinned_tokens=64 if warm else 0,
        )

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, and things come to rest."""
        self.seconds += seconds
        for _ in range(4):
            self.step()

    def rollout(self, text: str) -> None:
        """Edit, and wait until the edit is in force everywhere it can be."""
        self.edit(text)
        self.settle()
        self.settle(QUIET.total_seconds())

    def warm(self, pod: str) -> set[str]:
        return {each.id for each in self.held[pod] if each.phase is Phase.WARM}

    @property
    def listed(self) -> list[tuple[str, int]]:
        """The versions in the status: the ends of their ids, and on how many pods they are warm."""
        assert self.status is not None
        return [(f"u-{each.id}", each.warmPods) for each in self.status.versions]

    @property
    def routed(self) -> list[str]:
        return [each.id for each in self.publication.routes.prefixes]


ONE, TWO, THREE = id_of("one"), id_of("two"), id_of("three")
