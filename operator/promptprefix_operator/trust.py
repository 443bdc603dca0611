"""Keeps clients able to trust the control API: the served certificate and the published CA."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

import structlog

from promptprefix.wire import CA_CONFIG_MAP, CA_KEY
from promptprefix_operator.api_server import ApiError, ApiServer
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.certificates import Pair
from promptprefix_operator.credentials import SECRET, Credentials, CredentialStore

CHECK_SECONDS = 60.0
_NOT_FOUND = 404

log = structlog.get_logger(__name__)


class Trust:
    """Holds the server's TLS context and publishes the CA to the ConfigMaps of ``namespaces``.

    The ConfigMaps exist beforehand, so that the operator needs to get and patch one name only.
    """

    def __init__(
        self,
        api: ApiServer,
        store: CredentialStore,
        namespaces: Collection[str],
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._store = store
        self._namespaces = sorted(set(namespaces))
        self._now = now
        self._loaded: Pair | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    async def lead(self) -> int:
        """Load the certificate and return this operator's term; tries until it can."""
        backoff = Backoff()
        while True:
            try:
                credentials = await self._store.lead(self._now())
            except ApiError as error:
                wait = backoff.next()
                log.error(
                    "the Secret with the control API's certificate can't be read or written: "
                    "create it empty and allow the operator to get and update it",
                    secret=SECRET,
                    error=str(error),
                    retry_seconds=wait,
                )
                await asyncio.sleep(wait)
                continue
            self._load(credentials)
            return credentials.term

    async def keep(self) -> None:
        """Renew and publish, for ever."""
        backoff = Backoff()
        while True:
            if await self._check():
                backoff.reset()
                await asyncio.sleep(CHECK_SECONDS)
            else:
                await asyncio.sleep(backoff.next())

    async def _check(self) -> bool:
        try:
            credentials = await self._store.renew(self._now())
        except ApiError as error:
            log.error("the control API's certificate can't be renewed", error=str(error))
            return False
        self._load(credentials)
        results = [
            await self._publish(namespace, credentials.authority.certificate.decode())
            for namespace in self._namespaces
        ]
        return all(results)

    async def _publish(self, namespace: str, certificate: str) -> bool:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{CA_CONFIG_MAP}"
        try:
            present = await self._api.get(path)
            if (present.get("data") or {}).get(CA_KEY) != certificate:
                body = {"data": {CA_KEY: certificate}}
                await self._api.patch(path, body, "application/merge-patch+json")
                log.info("CA published", namespace=namespace, config_map=CA_CONFIG_MAP)
        except ApiError as error:
            hint = "create it empty" if error.status == _NOT_FOUND else "see the error"
            log.error(
                f"the CA can't be published to a ConfigMap: {hint}",
                namespace=namespace,
                config_map=CA_CONFIG_MAP,
                error=str(error),
            )
            return False
        return True

    def _load(self, credentials: Credentials) -> None:
        """Serve the certificate on new connections."""
        if credentials.serving == self._loaded:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pair.pem"
            path.touch(mode=0o600)
            path.write_bytes(credentials.serving.key + credentials.serving.certificate)
            self.context.load_cert_chain(path)
        self._loaded = credentials.serving


def context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context for files that somebody else keeps."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
