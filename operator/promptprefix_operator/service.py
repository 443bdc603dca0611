"""One replica as a whole: its ports, the election, and what it does when it leads."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import structlog
from kubernetes.aio.client.configuration import Configuration

from promptprefix_operator.api_server import ApiServer, connection_of
from promptprefix_operator.certificates import service_names
from promptprefix_operator.control_api import ControlApi, control_application
from promptprefix_operator.credentials import CredentialStore
from promptprefix_operator.health import Health, health_application, health_of
from promptprefix_operator.leader import Leader, assemble, utc_now
from promptprefix_operator.leadership import Leadership, Times
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.serving import listen
from promptprefix_operator.serving_certificate import CertificateFiles, ServingCertificate
from promptprefix_operator.settings import Settings
from promptprefix_operator.trust import Trust

_STALE_PASSES = 4
"""A pass older than this many resyncs means that the loop hangs."""

log = structlog.get_logger(__name__)


class Operator:
    """Runs until it is stopped. ``ports`` are those that it listens on, once ``listening`` is set.

    ``ready``: it leads and answers.
    """

    def __init__(
        self, settings: Settings, configuration: Configuration, times: Times | None = None
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._times = times or Times(settings.lease_seconds)
        self._metrics = Metrics()
        self._certificate = ServingCertificate()
        self._leader: Leader | None = None
        self._led_since: float | None = None
        self._leadership: Leadership | None = None
        self.stop = asyncio.Event()
        self.listening = asyncio.Event()
        self.ready = asyncio.Event()
        self.control_port = 0
        self.metrics_port = 0

    async def run(self) -> None:
        """Serve until ``stop`` is set, the lead is lost, or kopf ends by a signal or an error."""
        async with AsyncExitStack() as stack:
            api = ApiServer(self._configuration)
            stack.push_async_callback(api.close)
            await first_of(self._serve(api, stack), self.stop.wait())

    async def _serve(self, api: ApiServer, stack: AsyncExitStack) -> None:
        settings = self._settings
        if settings.leader_election:
            self._leadership = self._candidate(api)
        self.metrics_port = await listen(
            stack,
            health_application(self._metrics.registry, self._health),
            settings.metrics_host,
            settings.metrics_port,
        )
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(stack))
            keeping = group.create_task(self._keep_certificate(api))
            await self._stand(api, keeping)
            listening.cancel()
            keeping.cancel()

    async def _listen(self, stack: AsyncExitStack) -> None:
        """Open the ports once there is a certificate."""
        settings = self._settings
        await self._certificate.loaded.wait()
        self.control_port = await listen(
            stack,
            control_application(self._control),
            settings.listen_host,
            settings.listen_port,
            self._certificate.context,
        )
        self.listening.set()
        log.info("listening", control_port=self.control_port, metrics_port=self.metrics_port)

    async def _keep_certificate(self, api: ApiServer) -> None:
        """Serve the certificate that somebody else keeps: files, or the leader."""
        certificate, key = self._settings.tls_cert_file, self._settings.tls_key_file
        if certificate is not None and key is not None:
            await CertificateFiles(certificate, key, self._certificate).keep()
        else:
            await self._trust(api).follow()

    async def _stand(self, api: ApiServer, keeping: asyncio.Task[None]) -> None:
        """Wait for the lead and act for as long as it lasts."""
        leadership = self._leadership
        if leadership is None:
            await self._lead(api, keeping)
            return
        try:
            await leadership.win()
            fenced = api.fenced(leadership.seconds_left)
            await first_of(self._lead(fenced, keeping), self._hold(leadership))
        finally:
            leadership.resign()
            self._metrics.leader.set(0)
            await leadership.release()

    async def _hold(self, leadership: Leadership) -> None:
        reason = await leadership.hold()
        leadership.resign()
        log.error("the lead is lost: this process ends, to start anew as a standby", reason=reason)

    async def _lead(self, api: ApiServer, keeping: asyncio.Task[None]) -> None:
        """Do the leader's work until it is told to stop. ``api`` writes only while it may."""
        settings = self._settings
        self._led_since = time.monotonic()
        self._metrics.leader.set(1)
        trust = None
        term = int(time.time())
        if settings.tls_cert_file is None:
            keeping.cancel()  # the one who renews has no need to follow
            trust = self._trust(api)
            term = await trust.lead()
        await self.listening.wait()
        leader = assemble(
            settings, api, term, self._metrics, lambda: connection_of(self._configuration)
        )

        def ready() -> None:
            self._leader = leader
            self.ready.set()
            log.info(
                "serving",
                control_port=self.control_port,
                metrics_port=self.metrics_port,
                namespaces=settings.namespaces,
                term=term,
            )

        works: list[Awaitable[object]] = [leader.run(ready, self.stop)]
        if trust is not None:
            works.append(trust.keep())
        await first_of(*works)

    def _control(self) -> ControlApi | None:
        """Return who answers control requests: nobody where another one may lead."""
        if self._leader is None or (self._leadership is not None and not self._leadership.leading):
            return None
        return self._leader.control

    def _health(self) -> Health:
        led, leader = self._led_since, self._leader
        return health_of(
            listening=self.listening.is_set(),
            led_seconds=None if led is None else time.monotonic() - led,
            pass_age=None if leader is None else leader.controller.pass_age,
            limit_seconds=_STALE_PASSES * self._settings.resync_seconds,
        )

    def _candidate(self, api: ApiServer) -> Leadership:
        settings = self._settings
        return Leadership(
            api=api,
            namespace=settings.own_namespace,
            name=settings.lease_name,
            identity=f"{settings.identity}_{uuid.uuid4().hex[:8]}",
            times=self._times,
            clock=time.monotonic,
            now=utc_now,
            changed=self._metrics.leader_transitions.inc,
        )

    def _trust(self, api: ApiServer) -> Trust:
        settings = self._settings
        names = {
            *service_names(settings.service_name, settings.own_namespace),
            *settings.serving_names,
        }
        store = CredentialStore(api, settings.own_namespace, names)
        namespaces = {*settings.namespaces, settings.own_namespace}
        return Trust(api, store, namespaces, utc_now, self._certificate)


async def first_of(*works: Awaitable[object]) -> None:
    """Run ``works`` at once until the first of them ends; end the others and raise what any did."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
