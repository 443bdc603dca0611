"""Keeps clients able to trust the control API: the served certificate and the published CA."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from datetime import datetime

import structlog

from promptprefix.wire import CA_CONFIG_MAP, CA_KEY
from promptprefix_operator.api_server import ApiError, ApiServer
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.credentials import SECRET, Credentials, CredentialStore
from promptprefix_operator.serving_certificate import ServingCertificate

CHECK_SECONDS = 60.0
FIRST_SECONDS = 1.0
_NOT_FOUND = 404

log = structlog.get_logger(__name__)


class Trust:
    """Loads the served certificate, and publishes the CA to the ConfigMaps of ``namespaces``.

    The ConfigMaps exist beforehand, so that the operator needs to get and patch one name only.
    """

    def __init__(
        self,
        api: ApiServer,
        store: CredentialStore,
        namespaces: Collection[str],
        now: Callable[[], datetime],
        serving: ServingCertificate,
    ) -> None:
        self._api = api
        self._store = store
        self._namespaces = sorted(set(namespaces))
        self._now = now
        self._serving = serving

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
            self._serving.load(credentials.serving)
            return credentials.term

    async def follow(self) -> None:
        """Load what the leader made, for ever; nothing is written."""
        while True:
            try:
                self._serving.load((await self._store.read()).serving)
            except ApiError as error:
                log.error("the Secret with the certificate can't be read", error=str(error))
            except ssl.SSLError:
                pass  # no leader has filled it yet
            known = self._serving.loaded.is_set()
            await asyncio.sleep(CHECK_SECONDS if known else FIRST_SECONDS)

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
        self._serving.load(credentials.serving)
