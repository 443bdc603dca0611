"""What only the leading operator does: plan, answer, write. Built when it wins the Lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import kopf
import structlog

from promptprefix.lint import lint_payload
from promptprefix_operator.api_server import ApiServer
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.control_api import Access, ControlApi
from promptprefix_operator.controller import Controller
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.handlers import Login, kopf_settings, registry_of
from promptprefix_operator.identity import TokenReviewer
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.observation import Observer
from promptprefix_operator.publication import Publication
from promptprefix_operator.settings import Settings
from promptprefix_operator.sidecars import Sidecars
from promptprefix_operator.status_writer import StatusWriter

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Leader:
    """The leader's parts, wired."""

    settings: Settings
    metrics: Metrics
    cluster: Cluster
    controller: Controller
    publication: Publication
    observer: Observer
    writer: StatusWriter
    control: ControlApi
    login: Login

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Read the cluster, plan, call ``ready``; then work until ``stop`` is set or kopf ends."""
        await self.observer.start()
        self.controller.step()
        ready()
        registry = registry_of(
            login=self.login,
            cluster=self.cluster,
            controller=self.controller,
            writer=self.writer,
            passed=self.publication.wait,
            release_seconds=self.settings.release_seconds,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.controller.run()),
                group.create_task(self.observer.keep_config_maps(self.publication.wait)),
                group.create_task(self.observer.keep_swept()),
            ]
            await kopf.operator(
                registry=registry,
                settings=kopf_settings(),
                namespaces=self.settings.namespaces,
                standalone=True,
                stop_flag=stop,
            )
            for task in tasks:
                task.cancel()


def assemble(
    settings: Settings, api: ApiServer, term: int, metrics: Metrics, login: Login
) -> Leader:
    """Build the leader's parts for its ``term``; ``api`` refuses writes when the lead is lost."""
    wake = asyncio.Event()
    cluster = Cluster(wake.set)
    sidecars = Sidecars(time.monotonic, settings.connected_seconds, wake.set)
    declarations = Declarations(lint_payload)
    publication = Publication(term)
    controller = Controller(
        cluster=cluster,
        sidecars=sidecars,
        declarations=declarations,
        publication=publication,
        metrics=metrics,
        now=utc_now,
        clock=time.monotonic,
        wake=wake,
        resync_seconds=settings.resync_seconds,
    )
    return Leader(
        settings=settings,
        metrics=metrics,
        cluster=cluster,
        controller=controller,
        publication=publication,
        observer=Observer(api, cluster, settings.namespaces),
        writer=StatusWriter(
            api=api,
            cluster=cluster,
            controller=controller,
            metrics=metrics,
            clock=time.monotonic,
            rewrite_seconds=settings.resync_seconds,
        ),
        control=ControlApi(
            reviewer=TokenReviewer(api, time.time, metrics.cached_tokens.set),
            access=Access(settings.namespaces, settings.router_service_accounts),
            sidecars=sidecars,
            publication=publication,
            content=declarations.payload,
            metrics=metrics,
        ),
        login=login,
    )
