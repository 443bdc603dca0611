"""InferencePools that resources name: read by name, and watched as long as one is named.

Their CustomResourceDefinition and the right to list them may be missing, and either may come later:
that is told in the resources that name one, touches nothing else and is looked at again at times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import structlog

from promptprefix_operator.api_server import ApiError, ApiServer, Json
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.crd_check import is_served
from promptprefix_operator.handlers import WatchEndedError
from promptprefix_operator.sources import (
    POOL_GROUP,
    POOL_PLURAL,
    POOL_VERSION,
    Source,
    SourceKind,
    SourceText,
    absent,
    forbidden_pool,
    read_source,
    unreadable,
    unserved_pool,
)
from promptprefix_operator.troubles import Troubles

STEADY_SECONDS = 60.0
"""A watch that has lasted this long counts as one that works."""

_FORBIDDEN = 403
_NOT_FOUND = 404
_BROKEN = 500
_TRIES = 3
"""Answers in a row that the API server can't give InferencePools, until all else goes on."""

log = structlog.get_logger(__name__)


class Pools:
    """The InferencePools of one namespace.

    ``follow`` watches them until that fails; it is told what signals call. Where they can't be
    watched they are read again after ``reread_seconds``. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: Cluster,
        namespace: str,
        follow: Callable[[Callable[[], None]], Awaitable[None]],
        reread_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._namespace = namespace
        self._follow = follow
        self._reread_seconds = reread_seconds
        self._clock = clock
        self._sleep = sleep
        self._broken = 0
        self._troubles = Troubles(
            log, clock, "InferencePools can't be watched", "InferencePools are watched again"
        )

    async def read(self, source: Source) -> bool:
        """Take in one of them; return whether it could be asked for. Raises `ApiError`.

        Absence has no version: what the watch brings while it is being read is newer.
        """
        before = self._cluster.text(source)
        answered, found = await self._find(source)
        if self._cluster.text(source) is before:
            self._cluster.see_text(source, found)
        return answered

    async def keep(self, stop: Callable[[], None], passed: Callable[[], Awaitable[None]]) -> None:
        """Follow them for as long as a resource names one, for ever.

        ``passed`` returns after each plan.
        """
        backoff = Backoff()
        while True:
            if not self._named():
                await passed()
                continue
            began = self._clock()
            try:
                if not await self._watchable():
                    await self._sleep(self._reread_seconds)
                    continue
                self._troubles.worked("")
                await self._follow(stop)
            except ApiError as error:
                self._troubles.failed("", error, namespace=self._namespace)
            except WatchEndedError as error:
                self._troubles.failed("", ApiError(0, str(error)), namespace=self._namespace)
            if self._clock() - began > STEADY_SECONDS:
                backoff.reset()
            await self._sleep(backoff.next())

    async def _watchable(self) -> bool:
        """Read those that are named; return whether they can be watched."""
        answered = [await self.read(source) for source in sorted(self._named())]
        return all(answered) and await is_served(self._api, POOL_GROUP, POOL_VERSION, POOL_PLURAL)

    async def _find(self, source: Source) -> tuple[bool, SourceText]:
        """Find one by name in the list: the right to list is enough."""
        collection = f"namespaces/{quote(self._namespace)}/{POOL_PLURAL}"
        path = f"/apis/{POOL_GROUP}/{POOL_VERSION}/{collection}"
        try:
            answer = await self._api.get(path, {"fieldSelector": f"metadata.name={source.name}"})
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return False, unserved_pool()
            if error.status == _FORBIDDEN:
                return False, forbidden_pool()
            if error.status == _BROKEN and self._is_broken(error):
                return False, self._cluster.text(source) or unreadable(source, str(error))
            raise
        self._broken = 0
        items: list[Json] = list(answer.get("items") or ())
        found = [each for each in items if each["metadata"]["name"] == source.name]
        return True, read_source(source, found[0]) if found else absent(source)

    def _is_broken(self, error: ApiError) -> bool:
        """Whether only these can't be given, and for good, as without a conversion webhook."""
        self._broken += 1
        if self._broken == _TRIES:
            self._troubles.failed("", error, namespace=self._namespace)
        return self._broken >= _TRIES

    def _named(self) -> set[Source]:
        return {
            each
            for each in self._cluster.referred
            if each.kind is SourceKind.POOL and each.namespace == self._namespace
        }
