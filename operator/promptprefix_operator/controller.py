"""The loop: observe, plan, publish. Wake-ups are coalesced; everything is planned again at times.

A pass runs without a pause between reading and publishing, so what was reported before a pass
began is in its plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache, partial

import structlog

from promptprefix.fleet import DEFAULT_RETENTION, Limits, Prefix, Retention, Snapshot
from promptprefix.placement import Plan, Planner
from promptprefix.resource import PromptPrefixStatus
from promptprefix.roles import apart
from promptprefix.versions import only_warm
from promptprefix.wire import RoutePrefix, TenantSalt
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.matches import Matches
from promptprefix_operator.measures import Measures
from promptprefix_operator.metrics import Metrics, Warmth
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import Routers
from promptprefix_operator.settling import Settling
from promptprefix_operator.sidecars import Sidecars
from promptprefix_operator.warm_timer import WarmTimer

COALESCE_S = 0.05
"""Wake-ups that come within this time lead to one plan."""
PLAN_SHARE = 3.0
"""Between two plans at least this many times the last one's duration passes, for all else."""

SaltedRoutes = Callable[[tuple[RoutePrefix, ...], Iterable[Prefix]], tuple[RoutePrefix, ...]]
"""`Salts.routed`."""

log = structlog.get_logger(__name__)


class Controller:
    """Keeps the published plan up to date.

    ``unknown`` names the namespaces that could not be read yet.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        sidecars: Sidecars,
        declarations: Declarations,
        publication: Publication,
        matches: Matches,
        routers: Routers,
        measures: Measures,
        planner: Callable[[], Planner],
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        wake: asyncio.Event,
        resync_seconds: float,
        settling: Settling,
        limits: Mapping[str, Limits] | None = None,
        retention: Retention = DEFAULT_RETENTION,
        salted: SaltedRoutes | None = None,
        tenants: Callable[[Iterable[Prefix]], tuple[TenantSalt, ...]] = lambda _: (),
        unknown: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._cluster = cluster
        self._sidecars = sidecars
        self._declarations = declarations
        self._publication = publication
        self._matches = matches
        self._routers = routers
        self._measures = measures
        self._make_planner = planner
        self._planner = planner()
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._wake = wake
        self._resync_seconds = resync_seconds
        self._limits: Mapping[str, Limits] = limits or {}
        self._retention = retention
        self._salted: SaltedRoutes = salted or (lambda routes, _: routes)
        self._tenants = tenants
        self._unknown = unknown
        self._settling = settling
        self._wake_at: datetime | None = None
        self._passed: float | None = None
        self._planned_seconds = 0.0
        self._timer = WarmTimer(clock, metrics.apply_to_warm.observe)
        self._statuses: Mapping[str, PromptPrefixStatus] = {}
        metrics.watch_warmth(self._warmth)

    def status(self, uid: str) -> PromptPrefixStatus | None:
        """Return the status that a resource should have."""
        return self._statuses.get(uid)

    @property
    def pass_age(self) -> float | None:
        """Seconds since the last successful pass; None before the first."""
        return None if self._passed is None else self._clock() - self._passed

    @property
    def settling(self) -> bool:
        """Whether sidecars may still report for the first time."""
        return self._settling.left > 0

    async def run(self) -> None:
        """Plan at every wake-up and resync, for ever."""
        while True:
            self._wake.clear()
            self.step()
            await self._sleep()
            await asyncio.sleep(max(COALESCE_S, PLAN_SHARE * self._planned_seconds))

    def step(self) -> None:
        """Observe, plan and publish once; a plan that fails leaves the one before in force."""
        began = self._clock()
        try:
            now = self._now()
            snapshot = self._observe(now)
            made = self._planner.plan(snapshot, now)
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            self._wake_at = None
            self._planner = self._make_planner()  # it may remember half of what it saw
            self._metrics.plan_errors.inc()
            log.error("plan failed", error=type(error).__name__, exc_info=True)
            return
        self._execute(snapshot, made, now)
        self._metrics.connected_sidecars.set(len(snapshot.sidecars))
        self._passed = self._clock()
        self._planned_seconds = self._passed - began
        self._metrics.plan_seconds.observe(self._planned_seconds)

    def _observe(self, now: datetime) -> Snapshot:
        prefixes = self._declarations.prefixes(self._cluster, now)
        sessions = self._sidecars.connected()
        self._matches.follow(prefixes)
        self._measures.follow(prefixes)
        self._measures.read(
            {uid: session.state for uid, session in sessions.items()},
            {uid: pod.namespace for uid, pod in self._cluster.pods.items()},
        )
        return Snapshot(
            prefixes=prefixes,
            pods=apart(self._cluster.pods.values()),
            sidecars={
                uid: self._publication.sidecar(
                    uid, session.state, session.applied, self._sidecars.is_late(session)
                )
                for uid, session in sessions.items()
            },
            settling=self.settling,
            limits=self._limits,
            routed=self._routers.routed,
            silent=self._routers.silent,
            retention=self._retention,
            sizes=self._measures.sizes,
        )

    def _execute(self, snapshot: Snapshot, made: Plan, now: datetime) -> None:
        self._wake_at = made.wake_at
        self._statuses = made.statuses
        self._timer.observe(snapshot.prefixes, made.statuses)
        resources = self._cluster.resources
        self._declarations.prune(
            resources,
            made.kept,
            now,
            self._awaited(snapshot.settling),
            cache(partial(only_warm, snapshot)),
        )
        self._sidecars.forget_except(self._cluster.pods)
        routes = self._salted(made.prefixes, snapshot.prefixes)
        tenants = self._tenants(snapshot.prefixes)
        self._publication.publish(replace(made, prefixes=routes), self._unknown(), tenants)

    def _awaited(self, settling: bool) -> frozenset[str]:
        """Return the namespaces where a pod may hold what it does not report just now."""
        pods = self._cluster.pods
        if settling:
            return frozenset(pod.namespace for pod in pods.values())
        return frozenset(pods[uid].namespace for uid in self._sidecars.silent() if uid in pods)

    async def _sleep(self) -> None:
        waits = [self._resync_seconds]
        if (silence := self._sidecars.next_silence()) is not None:
            waits.append(silence)
        if (settling := self._settling.left) > 0:
            waits.append(settling)
        now = self._now()
        for due in (self._wake_at, self._declarations.wake_at):
            if due is not None:
                waits.append(max(0.0, (due - now).total_seconds()))
        try:
            async with asyncio.timeout(min(waits)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _warmth(self) -> Iterator[Warmth]:
        for uid, status in self._statuses.items():
            resource = self._cluster.resources.get(uid)
            if resource is not None:
                yield Warmth(
                    resource.namespace,
                    resource.name,
                    status.desiredPods,
                    status.warmPods,
                    status.pinnedPods,
                )
