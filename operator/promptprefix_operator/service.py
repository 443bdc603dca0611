"""One replica as a whole: its ports, the election, and what it does when it leads."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import CollectorRegistry

from promptprefix_operator.api_server import ApiServer, connection_of
from promptprefix_operator.block_keys import BlockKeyring
from promptprefix_operator.certificates import service_names
from promptprefix_operator.control_api import ControlApi, control_application
from promptprefix_operator.crd_check import check_crd
from promptprefix_operator.credentials import SECRET, CredentialStore
from promptprefix_operator.health import Health, health_application, health_of
from promptprefix_operator.leader import Leader, assemble, utc_now
from promptprefix_operator.leadership import Leadership, Times
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.ports import Ports
from promptprefix_operator.settings import Settings
from promptprefix_operator.trust import Trust
from promptprefix_operator.webhook_trust import WebhookTrust

_STALE_PASSES = 4
"""A pass older than this many resyncs means that the loop hangs."""

MakeWebhook = Callable[[CollectorRegistry], web.Application]
"""Builds the webhook's application, which counts in the registry."""

log = structlog.get_logger(__name__)


class Operator:
    """Runs until it is stopped. ``ready`` is set once it leads and answers."""

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        *,
        webhook: MakeWebhook | None = None,
        times: Times | None = None,
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._webhook = webhook
        self._times = times or Times(settings.lease_seconds)
        self._metrics = Metrics()
        self._metrics.leader.set_function(lambda: float(self._may_act()))
        self._leader: Leader | None = None
        self._led_since: float | None = None
        self._leadership: Leadership | None = None
        self.ports = Ports(settings)
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Serve until ``stop`` is set, the lead is lost or a part fails.

        Raises `CrdTooOldError`.
        """
        async with AsyncExitStack() as stack:
            api = ApiServer(self._configuration)
            stack.push_async_callback(api.close)
            await first_of(self._serve(api, stack), self._stopped())

    async def _stopped(self) -> None:
        """Return when it is told to stop; from then on nothing is written or answered."""
        await self.stop.wait()
        if self._leadership is not None:
            self._leadership.resign()

    async def _serve(self, api: ApiServer, stack: AsyncExitStack) -> None:
        settings, ports, registry = self._settings, self.ports, self._metrics.registry
        if settings.leader_election:
            self._leadership = self._candidate(api)
            api = api.fenced(self._leadership.seconds_left)
        trust = self._trust(api) if settings.keeps_authority else None
        await ports.open_health(stack, health_application(registry, self._health))
        webhook = self._webhook(registry) if self._webhook is not None else None
        control = control_application(self._control)
        works = [
            self._stand(api, trust),
            _beside(ports.open_rest(stack, control, webhook)),
            _beside(ports.keep_files()),
        ]
        if trust is not None:
            works.append(_beside(trust.follow()))
        await first_of(*works)

    async def _stand(self, api: ApiServer, trust: Trust | None) -> None:
        """Wait for the lead and act for as long as it lasts."""
        leadership = self._leadership
        await check_crd(api)
        if leadership is None:
            await self._lead(api, trust)
            return
        try:
            await leadership.win()
            await first_of(self._lead(api, trust), _hold(leadership))
        finally:
            await leadership.release()

    async def _lead(self, api: ApiServer, trust: Trust | None) -> None:
        """Do the leader's work until it is told to stop."""
        settings = self._settings
        self._led_since = time.monotonic()
        credentials = None if trust is None else await trust.lead()
        term = int(time.time()) if credentials is None else credentials.term
        await self.ports.answering.wait()
        leader = assemble(
            settings,
            api,
            self._metrics,
            lambda: connection_of(self._configuration),
            term=term,
            keys=BlockKeyring(b"" if credentials is None else credentials.seed),
            after_silence=self._leadership is not None and self._leadership.after_silence,
        )

        def ready() -> None:
            self._leader = leader
            self.ready.set()
            log.info(
                "serving",
                control_port=self.ports.control,
                metrics_port=self.ports.metrics,
                namespaces=settings.namespaces,
                term=term,
            )

        works: list[Awaitable[object]] = [leader.run(ready, self.stop)]
        if trust is not None:
            works.append(trust.keep())
        await first_of(*works)

    def _may_act(self) -> bool:
        if self._led_since is None or self.stop.is_set():
            return False
        return self._leadership is None or self._leadership.leading

    def _control(self) -> ControlApi | None:
        """Return who answers control requests: nobody where another one may lead."""
        return self._leader.control if self._leader is not None and self._may_act() else None

    def _health(self) -> Health:
        led, leader = self._led_since, self._leader
        return health_of(
            listening=self.ports.answering.is_set(),
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
            owner=SECRET,
            signed=self._settings.keeps_authority,
            identity=f"{settings.identity}_{uuid.uuid4().hex[:8]}",
            times=self._times,
            clock=time.monotonic,
            now=utc_now,
            changed=self._metrics.leader_transitions.inc,
        )

    def _trust(self, api: ApiServer) -> Trust:
        settings = self._settings
        own, configuration = settings.own_namespace, settings.webhook_configuration
        names = {*service_names(settings.service_name, own), *settings.serving_names}
        webhooks = None
        if configuration and settings.webhook_cert_file is None:
            names |= set(service_names(settings.webhook_service_name, own))
            webhooks = WebhookTrust(api, configuration)
        return Trust(
            api=api,
            store=CredentialStore(api, own, names),
            namespaces={*settings.namespaces, own} if settings.tls_cert_file is None else (),
            now=utc_now,
            serving=self.ports.own,
            webhooks=webhooks,
        )


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


async def _beside(work: Awaitable[object]) -> None:
    """Do ``work`` beside others: its failure ends them, its end does not."""
    await work
    await asyncio.Event().wait()


async def _hold(leadership: Leadership) -> None:
    reason = await leadership.hold()
    leadership.resign()
    log.warning("the lead is lost: this process ends, to start anew as a standby", reason=reason)
