"""Reads from Envoy's admin listener how often it resolved each name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import msgspec
import structlog

from promptprefix_router.envoy.header_counts import (
    STATS_FILTER,
    HeaderCounts,
    HeaderReading,
    parse_counts,
)
from promptprefix_router.envoy.publisher import EnvoyPublisher
from promptprefix_router.metrics import RouterMetrics

COUNT_INTERVAL_S = 2.0
"""Time between two readings, as long as engines are sent requests."""


class _ServerInfo(msgspec.Struct):
    uptime_current_epoch: str


class HeaderCountReader:
    """Takes the counts over. A failure loses nothing: the next reading has what this one missed.

    ``served`` is the number of requests that engines were sent, as far as known: while it stands
    still there is nothing to read. ``wall`` is Unix seconds.
    """

    def __init__(
        self,
        admin: httpx.AsyncClient,
        counts: HeaderCounts,
        publisher: EnvoyPublisher,
        served: Callable[[], int],
        metrics: RouterMetrics,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._admin = admin
        self._counts = counts
        self._publisher = publisher
        self._served = served
        self._metrics = metrics
        self._wall = wall
        self._sleep = sleep
        self._served_before = -1
        self._log = structlog.get_logger("envoy")

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self._sleep(COUNT_INTERVAL_S)
            served = self._served()
            if served != self._served_before and await self.read():
                self._served_before = served

    async def read(self) -> bool:
        """Read once; return whether everything up to now is counted."""
        plan = self._publisher.plan
        if plan is None:
            return False
        if not plan.routes:
            return True
        try:
            reading = await self._ask()
        except (httpx.HTTPError, ValueError):
            self._metrics.read_counts("failed")
            return False
        self._metrics.read_counts("ok")
        try:
            self._counts.take(reading, plan)
        except OSError as error:
            self._log.error("what was counted can't be remembered", error=str(error))
        return True

    async def _ask(self) -> HeaderReading:
        """Ask Envoy. Raises `httpx.HTTPError` or `ValueError`."""
        info = await self._get("/server_info")
        age = msgspec.json.decode(info, type=_ServerInfo).uptime_current_epoch
        started = self._wall() - float(age.removesuffix("s"))
        parameters = {
            "type": "Counters",
            "usedonly": "",
            "format": "text",
            "filter": STATS_FILTER,
        }
        return HeaderReading(started, parse_counts(await self._get("/stats", parameters)))

    async def _get(self, path: str, parameters: dict[str, str] | None = None) -> str:
        response = await self._admin.get(path, params=parameters)
        response.raise_for_status()
        return response.text
