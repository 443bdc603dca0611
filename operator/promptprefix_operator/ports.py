"""The ports of a replica, open whether it leads or not, and the certificates that they serve."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
from aiohttp import web

from promptprefix_operator.serving import listen
from promptprefix_operator.serving_certificate import CertificateFiles, ServingCertificate
from promptprefix_operator.settings import Settings

log = structlog.get_logger(__name__)


class Ports:
    """Numbers are 0 until the port is open. ``own`` is the certificate that we make ourselves.

    ``answering`` is set once the control port is open. The webhook may stay without a certificate:
    whoever keeps its files stops the injection, not the operator.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files: list[CertificateFiles] = []
        self.own = ServingCertificate()
        self._control = self._certificate(settings.tls_cert_file, settings.tls_key_file)
        self._webhook = self._certificate(settings.webhook_cert_file, settings.webhook_key_file)
        self.answering = asyncio.Event()
        self.control = 0
        self.metrics = 0
        self.webhook = 0

    async def open_health(self, stack: AsyncExitStack, app: web.Application) -> None:
        """Open the port of the probes, which needs no certificate."""
        settings = self._settings
        self.metrics = await listen(stack, app, settings.metrics_host, settings.metrics_port)

    async def open_rest(
        self, stack: AsyncExitStack, control: web.Application, webhook: web.Application | None
    ) -> None:
        """Open the others, each as soon as it has a certificate."""
        settings = self._settings
        await self._control.loaded.wait()
        self.control = await listen(
            stack, control, settings.listen_host, settings.listen_port, self._control.context
        )
        self.answering.set()
        log.info("listening", control_port=self.control, metrics_port=self.metrics)
        if webhook is not None:
            await self._webhook.loaded.wait()
            self.webhook = await listen(
                stack, webhook, settings.webhook_host, settings.webhook_port, self._webhook.context
            )
            log.info("webhook listening", webhook_port=self.webhook)

    async def keep_files(self) -> None:
        """Follow the certificate files, for ever."""
        async with asyncio.TaskGroup() as group:
            for files in self._files:
                group.create_task(files.keep())

    def _certificate(self, certificate: Path | None, key: Path | None) -> ServingCertificate:
        if certificate is None or key is None:
            return self.own
        serving = ServingCertificate()
        self._files.append(CertificateFiles(certificate, key, serving))
        return serving
