"""First reading of the cluster, ConfigMaps on demand, and a sweep for deletions that were missed.

kopf brings every later change. It lists again after a watch was cut for long, but says nothing of
objects that vanished meanwhile: hence the sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import quote

import structlog

from promptprefix.resource import GROUP, PLURAL, VERSION
from promptprefix_operator.api_server import ApiError, ApiServer, Json
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster, Key
from promptprefix_operator.manifests import uid_of

SWEEP_SECONDS = 300.0
_NOT_FOUND = 404

log = structlog.get_logger(__name__)


class Observer:
    """Reads the watched namespaces into ``cluster``."""

    def __init__(self, api: ApiServer, cluster: Cluster, namespaces: Collection[str]) -> None:
        self._api = api
        self._cluster = cluster
        self._namespaces = sorted(namespaces)

    async def start(self) -> None:
        """Read everything once; tries until it can, and says what is missing."""
        await self._persist(self._read_all)

    async def read_config_maps(self) -> None:
        """Read the ConfigMaps that resources refer to and that are not known yet."""
        for key in sorted(self._cluster.missing):
            await self._read_config_map(key)

    async def keep_config_maps(self, passed: Callable[[], Awaitable[None]]) -> None:
        """Read missing ConfigMaps after each pass, for ever."""
        while True:
            await self._persist(self.read_config_maps)
            await passed()

    async def keep_swept(self) -> None:
        """Drop now and then what is gone, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._persist(self.sweep)

    async def sweep(self) -> None:
        """Drop what was known before this reading and what it does not find."""
        resources, pods = set(self._cluster.resources), set(self._cluster.pods)
        for namespace in self._namespaces:
            resources -= {uid_of(each) for each in await self._api.list_all(_resources(namespace))}
            pods -= {uid_of(each) for each in await self._api.list_all(_pods(namespace))}
        for uid in resources:
            self._cluster.forget_resource(uid)
        for uid in pods:
            self._cluster.forget_pod(uid)
        for key in sorted(self._cluster.referred):
            await self._read_config_map(key)

    async def _read_all(self) -> None:
        for namespace in self._namespaces:
            for body in await self._api.list_all(_resources(namespace)):
                self._cluster.see_resource(body)
            for body in await self._api.list_all(_pods(namespace)):
                self._cluster.see_pod(body)
        await self.read_config_maps()

    async def _read_config_map(self, key: Key) -> None:
        """Take in one ConfigMap, unless the watch brought something while it was being read.

        Absence has no version, so nothing else tells whether it is older than what came meanwhile.
        """
        missing, before = key in self._cluster.missing, self._cluster.config_map(key)
        found = await self._config_map(key)
        now_missing, now = key in self._cluster.missing, self._cluster.config_map(key)
        if missing == now_missing and before is now:
            self._cluster.see_config_map(key, found)

    async def _config_map(self, key: Key) -> Json | None:
        """Find one by name in the list: the right to list is enough, and absence no error."""
        namespace, name = key
        query = {"fieldSelector": f"metadata.name={name}"}
        answer = await self._api.get(f"/api/v1/namespaces/{quote(namespace)}/configmaps", query)
        found = [each for each in answer.get("items") or () if each["metadata"]["name"] == name]
        return found[0] if found else None

    async def _persist(self, read: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff()
        while True:
            try:
                await read()
            except ApiError as error:
                wait = backoff.next()
                hint = "are the CRD and the namespace there?" if error.status == _NOT_FOUND else ""
                log.error("cluster can't be read", error=str(error), hint=hint, retry_seconds=wait)
                await asyncio.sleep(wait)
                continue
            return


def _resources(namespace: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quote(namespace)}/{PLURAL}"


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods"
