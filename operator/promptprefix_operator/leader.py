"""What only the leading operator does: plan, answer, write. Built when it wins the Lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from promptprefix.lint import lint_payload
from promptprefix.placement import Planner
from promptprefix_operator import annotation_warnings, pod_warnings
from promptprefix_operator.api_server import ApiServer
from promptprefix_operator.attention import Attention
from promptprefix_operator.block_keys import NO_KEYS, BlockKeyring
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.control_api import Access, ControlApi
from promptprefix_operator.controller import Controller
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.events import Events, Notice
from promptprefix_operator.handlers import Login, follow, pool_registry_of, registry_of
from promptprefix_operator.identity import TokenReviewer
from promptprefix_operator.manifests import Resource
from promptprefix_operator.matches import Matches
from promptprefix_operator.measures import Measures
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.namespace_watch import NamespaceWatch
from promptprefix_operator.observation import SECRET_SECONDS, Observer
from promptprefix_operator.pace import Pace
from promptprefix_operator.pod_warnings import uninjected_by_namespace
from promptprefix_operator.pools import Pools
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import Routers
from promptprefix_operator.salts import Salts
from promptprefix_operator.settings import Settings
from promptprefix_operator.settling import RECONNECT_S, SILENCE_S, Settling
from promptprefix_operator.sidecars import Sidecars
from promptprefix_operator.standing_warnings import StandingWarnings
from promptprefix_operator.status_tasks import StatusTasks
from promptprefix_operator.status_writer import StatusWriter
from promptprefix_operator.steady_clock import SteadyClock

FIRST_READING_SECONDS = 15.0
"""A namespace that is not read by then is read later; its pods keep what they hold."""
_CONCURRENT_READINGS = 8
_REREAD_SHARE = 0.9
"""Secrets are due a little before each resync, so that a change is seen within that time."""

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Leader:
    """The leader's parts, wired."""

    attention: Attention
    controller: Controller
    publication: Publication
    watches: tuple[NamespaceWatch, ...]
    statuses: StatusTasks
    warnings: tuple[StandingWarnings, ...]
    events: Events
    control: ControlApi

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Read the cluster, plan, call ``ready``; then work for ever.

        The signals that end the process set ``stop``: kopf would keep them for itself.
        """
        try:
            await self._work(ready, stop)
        finally:
            self.control.end()

    async def _work(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        passed = self.publication.wait
        async with asyncio.TaskGroup() as group:
            group.create_task(self.attention.keep())
            for watch in self.watches:
                group.create_task(watch.run(stop.set))
            await self._first_readings()
            self.controller.step()
            ready()
            group.create_task(self.controller.run())
            group.create_task(self.statuses.run(passed))
            for warnings in self.warnings:
                group.create_task(warnings.run(passed))
            group.create_task(self.events.run())

    async def _first_readings(self) -> None:
        try:
            async with asyncio.timeout(FIRST_READING_SECONDS):
                for watch in self.watches:
                    await watch.tried.wait()
        except TimeoutError:
            late = [watch.namespace for watch in self.watches if not watch.tried.is_set()]
            log.warning("the first reading takes long; serving without it", namespaces=late)


def assemble(
    settings: Settings,
    api: ApiServer,
    metrics: Metrics,
    login: Login,
    *,
    term: int,
    keys: BlockKeyring = NO_KEYS,
    after_silence: bool,
) -> Leader:
    """Build the leader's parts for its ``term``; ``api`` refuses writes when the lead is lost.

    ``after_silence``: the leader before went without a word.
    """
    known = _known(settings, Publication(term, keys))
    metrics.matched_versions.set_function(lambda: len(known.matches))
    events = Events(api, metrics, utc_now, time.monotonic, settings.identity)
    cluster, publication = known.cluster, known.publication
    watches = _watches(settings, api, cluster, publication, metrics, login, known.wake.set)
    settling_seconds = SILENCE_S if after_silence else RECONNECT_S
    controller = _controller(settings, known, metrics, watches.values(), settling_seconds)
    metrics.watch_silent_routers(
        lambda: {**dict.fromkeys(settings.namespaces, 0), **known.routers.late}
    )
    metrics.watch_uninjected(
        lambda: {**dict.fromkeys(settings.namespaces, 0), **uninjected_by_namespace(cluster.pods)}
    )
    return Leader(
        attention=known.attention,
        controller=controller,
        publication=publication,
        watches=tuple(watches.values()),
        statuses=_statuses(
            settings, api, cluster, controller, publication, events, metrics, watches
        ),
        warnings=_warnings(cluster, known.sidecars, events),
        events=events,
        control=ControlApi(
            reviewer=TokenReviewer(api, time.time, time.monotonic, metrics.cached_tokens.set),
            access=Access(
                settings.namespaces, settings.router_service_accounts, settings.own_namespace
            ),
            sidecars=known.sidecars,
            publication=publication,
            known=lambda namespace: watches[namespace].known,
            content=known.declarations.payload,
            salt=known.salts.of,
            matches=known.matches,
            routers=known.routers,
            metrics=metrics,
            settling=lambda: controller.settling,
        ),
    )


@dataclass(frozen=True)
class _Known:
    """What a leader knows: of the cluster, of who reports to it, and what it told them.

    ``wake`` is set when any of it changes.
    """

    wake: asyncio.Event
    steady: SteadyClock
    attention: Attention
    cluster: Cluster
    sidecars: Sidecars
    matches: Matches
    routers: Routers
    salts: Salts
    declarations: Declarations
    publication: Publication


def _known(settings: Settings, publication: Publication) -> _Known:
    wake, salts, retention = asyncio.Event(), Salts(), settings.retention
    steady = SteadyClock(utc_now, time.monotonic)
    attention = Attention(time.monotonic)
    cluster = Cluster(wake.set)
    routers = Routers(attention.now, wake.set)
    matches = Matches(steady.now, routers, wake.set, retention)
    return _Known(
        wake=wake,
        steady=steady,
        attention=attention,
        cluster=cluster,
        sidecars=Sidecars(
            attention.now,
            settings.connected_seconds,
            wake.set,
            steady.now,
            vouched=cluster.is_ready,
            vouched_seconds=settings.connected_ready_seconds,
        ),
        matches=matches,
        routers=routers,
        salts=salts,
        declarations=Declarations(lint_payload, salts, retention, matches.latest),
        publication=publication,
    )


def _controller(
    settings: Settings,
    known: _Known,
    metrics: Metrics,
    watches: Collection[NamespaceWatch],
    settling_seconds: float,
) -> Controller:
    return Controller(
        cluster=known.cluster,
        sidecars=known.sidecars,
        declarations=known.declarations,
        publication=known.publication,
        matches=known.matches,
        routers=known.routers,
        measures=Measures(),
        planner=Planner,
        metrics=metrics,
        now=known.steady.now,
        clock=time.monotonic,
        wake=known.wake,
        resync_seconds=settings.resync_seconds,
        settling=Settling(known.attention.now, lambda: known.sidecars.came, settling_seconds),
        limits=settings.namespace_limits,
        retention=settings.retention,
        salted=known.salts.routed,
        tenants=known.salts.tenants,
        unknown=lambda: [watch.namespace for watch in watches if watch.unknown],
    )


def _warnings(cluster: Cluster, sidecars: Sidecars, events: Events) -> tuple[StandingWarnings, ...]:
    def of_pods() -> Iterable[Notice]:
        states = {uid: each.state for uid, each in sidecars.connected().items()}
        return pod_warnings.notices(cluster.pods, states)

    def of_resources() -> Iterable[Notice]:
        return annotation_warnings.notices(cluster.resources)

    return tuple(
        StandingWarnings(found, events, time.monotonic) for found in (of_pods, of_resources)
    )


def _statuses(
    settings: Settings,
    api: ApiServer,
    cluster: Cluster,
    controller: Controller,
    publication: Publication,
    events: Events,
    metrics: Metrics,
    watches: Mapping[str, NamespaceWatch],
) -> StatusTasks:
    def known() -> Mapping[str, Resource]:
        """Return the resources whose pods were read, too; without these a status would be wrong."""
        resources = cluster.resources.items()
        return {uid: each for uid, each in resources if watches[each.namespace].known}

    writer = StatusWriter(
        api=api,
        cluster=cluster,
        controller=controller,
        events=events,
        metrics=metrics,
        clock=time.monotonic,
        rewrite_seconds=settings.resync_seconds,
    )
    return StatusTasks(
        resources=known,
        follow=lambda uid: writer.follow(uid, publication.wait),
        clock=time.monotonic,
    )


def _watches(
    settings: Settings,
    api: ApiServer,
    cluster: Cluster,
    publication: Publication,
    metrics: Metrics,
    login: Login,
    wake: Callable[[], None],
) -> dict[str, NamespaceWatch]:
    slots = asyncio.Semaphore(_CONCURRENT_READINGS)
    pace = Pace(time.monotonic, SECRET_SECONDS)
    registry, pool_registry = registry_of(login, cluster), pool_registry_of(login, cluster)
    reread_seconds = _REREAD_SHARE * settings.resync_seconds

    def pools(namespace: str) -> Pools:
        return Pools(
            api=api,
            cluster=cluster,
            namespace=namespace,
            follow=lambda stop: follow(namespace, pool_registry, stop),
            reread_seconds=reread_seconds,
            clock=time.monotonic,
        )

    def watch(namespace: str) -> NamespaceWatch:
        return NamespaceWatch(
            namespace=namespace,
            observer=Observer(
                api=api,
                cluster=cluster,
                namespace=namespace,
                slots=slots,
                pace=pace,
                pools=pools(namespace),
                reread_seconds=reread_seconds,
                clock=time.monotonic,
            ),
            cluster=cluster,
            publication=publication,
            follow=lambda stop: follow(namespace, registry, stop),
            watched=metrics.namespace_watched.labels(namespace).set,
            wake=wake,
            clock=time.monotonic,
        )

    return {namespace: watch(namespace) for namespace in sorted(set(settings.namespaces))}
