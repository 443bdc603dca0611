"""The operator as one whole: its parts built and wired, started in order, stopped together."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import kopf
import structlog
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from promptprefix.lint import lint_payload
from promptprefix_operator.api_server import ApiServer, connection_of
from promptprefix_operator.certificates import service_names
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.control_api import Access, ControlApi
from promptprefix_operator.controller import Controller
from promptprefix_operator.credentials import CredentialStore
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.handlers import Login, kopf_settings, registry_of
from promptprefix_operator.health import health_application
from promptprefix_operator.identity import TokenReviewer
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.observation import Observer
from promptprefix_operator.publication import Publication
from promptprefix_operator.settings import Settings
from promptprefix_operator.sidecars import Sidecars
from promptprefix_operator.status_writer import StatusWriter
from promptprefix_operator.trust import Trust, context_of

_STALE_PASSES = 4
"""A pass older than this many resyncs means that the loop hangs."""

IDLE_SECONDS = 60.0
"""A connection that asks nothing for this long is closed; anybody can open one."""

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class _Parts:
    """What the operator is made of, wired."""

    metrics: Metrics
    cluster: Cluster
    sidecars: Sidecars
    declarations: Declarations
    publication: Publication
    controller: Controller
    observer: Observer

    def health(self, settings: Settings) -> web.Application:
        """Return the application of the metrics port."""
        return health_application(
            self.metrics.registry,
            lambda: self.controller.pass_age,
            _STALE_PASSES * settings.resync_seconds,
        )

    def control(self, settings: Settings, api: ApiServer) -> web.Application:
        """Return the application of the control port."""
        return ControlApi(
            reviewer=TokenReviewer(api, time.time, self.metrics.cached_tokens.set),
            access=Access(settings.namespaces, settings.router_service_accounts),
            sidecars=self.sidecars,
            publication=self.publication,
            content=self.declarations.payload,
            metrics=self.metrics,
        ).application()

    def registry(self, settings: Settings, api: ApiServer, login: Login) -> kopf.OperatorRegistry:
        """Return what kopf calls."""
        writer = StatusWriter(
            api=api,
            cluster=self.cluster,
            controller=self.controller,
            metrics=self.metrics,
            clock=time.monotonic,
            rewrite_seconds=settings.resync_seconds,
        )
        return registry_of(
            login=login,
            cluster=self.cluster,
            controller=self.controller,
            writer=writer,
            passed=self.publication.wait,
            release_seconds=settings.release_seconds,
        )


def _assemble(settings: Settings, api: ApiServer, term: int) -> _Parts:
    wake = asyncio.Event()
    metrics = Metrics()
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
    observer = Observer(api, cluster, settings.namespaces)
    return _Parts(metrics, cluster, sidecars, declarations, publication, controller, observer)


class Operator:
    """Runs until it is stopped. ``ports`` are those that it listens on, once it is ready."""

    def __init__(self, settings: Settings, configuration: Configuration) -> None:
        self._settings = settings
        self._configuration = configuration
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.control_port = 0
        self.metrics_port = 0

    async def run(self) -> None:
        """Serve until ``stop`` is set or kopf ends, by a signal or by an error."""
        api = ApiServer(self._configuration)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(api.close)
            starting = asyncio.create_task(self._serve(api, stack))
            stopping = asyncio.create_task(self.stop.wait())
            try:
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                starting.cancel()
                results = await asyncio.gather(starting, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result

    async def _serve(self, api: ApiServer, stack: AsyncExitStack) -> None:
        settings = self._settings
        trust = self._trust(api)
        context, term = await self._lead(trust)
        parts = _assemble(settings, api, term)
        self.metrics_port = await listen(
            stack, parts.health(settings), settings.metrics_host, settings.metrics_port
        )
        await parts.observer.start()
        parts.controller.step()
        self.control_port = await listen(
            stack, parts.control(settings, api), settings.listen_host, settings.listen_port, context
        )
        log.info(
            "serving",
            control_port=self.control_port,
            metrics_port=self.metrics_port,
            namespaces=settings.namespaces,
            term=term,
        )
        self.ready.set()
        await self._work(parts, api, trust)

    async def _work(self, parts: _Parts, api: ApiServer, trust: Trust | None) -> None:
        """Run the loops until kopf ends."""
        registry = parts.registry(self._settings, api, lambda: connection_of(self._configuration))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(parts.controller.run()),
                group.create_task(parts.observer.keep_config_maps(parts.publication.wait)),
                group.create_task(parts.observer.keep_swept()),
            ]
            if trust is not None:
                tasks.append(group.create_task(trust.keep()))
            await kopf.operator(
                registry=registry,
                settings=kopf_settings(),
                namespaces=self._settings.namespaces,
                standalone=True,
                stop_flag=self.stop,
            )
            for task in tasks:
                task.cancel()

    def _trust(self, api: ApiServer) -> Trust | None:
        settings = self._settings
        if settings.tls_cert_file is not None:
            return None
        names = {
            *service_names(settings.service_name, settings.own_namespace),
            *settings.serving_names,
        }
        store = CredentialStore(api, settings.own_namespace, names)
        namespaces = {*settings.namespaces, settings.own_namespace}
        return Trust(api, store, namespaces, utc_now)

    async def _lead(self, trust: Trust | None) -> tuple[ssl.SSLContext, int]:
        certificate, key = self._settings.tls_cert_file, self._settings.tls_key_file
        if trust is None and certificate is not None and key is not None:
            return context_of(certificate, key), int(time.time())
        if trust is None:
            raise ValueError("neither TLS files nor a Secret")
        term = await trust.lead()
        return trust.context, term


async def listen(
    stack: AsyncExitStack,
    app: web.Application,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
) -> int:
    """Serve ``app`` and return the port."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, ssl_context=context)
    await site.start()
    return int(runner.addresses[0][1])
