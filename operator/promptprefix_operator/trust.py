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
from promptprefix_operator.webhook_trust import WebhookTrust

CHECK_SECONDS = 30.0
FIRST_SECONDS = 1.0
_NOT_FOUND = 404

log = structlog.get_logger(__name__)


class Trust:
    """Loads the served certificate, and publishes the CA.

    It goes to the ConfigMaps of ``namespaces``, which exist beforehand, so that the operator needs
    to get and patch one name only, and to the ``webhooks`` if there are any.
    """

    def __init__(
        self,
        api: ApiServer,
        store: CredentialStore,
        namespaces: Collection[str],
        now: Callable[[], datetime],
        serving: ServingCertificate,
        webhooks: WebhookTrust | None = None,
    ) -> None:
        self._api = api
        self._store = store
        self._namespaces = sorted(set(namespaces))
        self._now = now
        self._serving = serving
        self._webhooks = webhooks
        self._published = b""
        self._leads = False

    async def lead(self) -> Credentials:
        """Load the certificate and return what a new term has; tries until it can."""
        self._leads = True
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
            return credentials

    async def follow(self) -> None:
        """Load what the leader makes, until this operator leads; nothing is written."""
        backoff = Backoff(first=FIRST_SECONDS)
        while not self._leads:
            failed = True
            try:
                credentials = await self._store.read()
                if not self._leads and credentials.serving.certificate:
                    self._serving.load(credentials.serving)
                failed = False
                backoff.reset()
            except ApiError as error:
                log.error("the Secret with the certificate can't be read", error=str(error))
            except ssl.SSLError as error:
                log.error(
                    "the Secret's certificate is unfit; a leader replaces it", error=str(error)
                )
            if self._serving.loaded.is_set():
                await asyncio.sleep(CHECK_SECONDS)
            else:
                await asyncio.sleep(backoff.next() if failed else FIRST_SECONDS)

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
            credentials = await self._store.renew(self._now(), self._published)
        except ApiError as error:
            log.error("the control API's certificate can't be renewed", error=str(error))
            return False
        self._serving.load(credentials.serving)
        bundle = credentials.authorities.bundle
        results = [
            await self._publish(namespace, bundle.decode()) for namespace in self._namespaces
        ]
        if self._webhooks is not None:
            results.append(await self._webhooks.publish(bundle))
        done = all(results)
        self._published = bundle if done else b""
        return done

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
