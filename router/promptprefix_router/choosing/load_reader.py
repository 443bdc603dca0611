"""Reads how busy each endpoint is from Envoy's admin listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import msgspec

from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.envoy.endpoints_file import ENGINES_CLUSTER
from promptprefix_router.metrics import RouterMetrics

PAUSE_FACTOR = 20
"""A pause is at least so many times as long as the reading before it: the page of hundreds of pods
takes Envoy and the picker a while."""
MAX_PAUSE_S = 2.0

IDLE_FACTOR = 10
"""An idle pool is read this many times less often."""


class LoadFormatError(ValueError):
    """Envoy's answer can't be read."""


class _Socket(msgspec.Struct):
    address: str = ""
    port_value: int = 0


class _Address(msgspec.Struct):
    socket_address: _Socket = msgspec.field(default_factory=_Socket)


class _Stat(msgspec.Struct):
    name: str = ""
    value: str = "0"


class _Health(msgspec.Struct):
    failed_active_health_check: bool = False


class _Host(msgspec.Struct):
    address: _Address = msgspec.field(default_factory=_Address)
    stats: list[_Stat] = []
    health_status: _Health = msgspec.field(default_factory=_Health)


class _Cluster(msgspec.Struct):
    name: str = ""
    host_statuses: list[_Host] = []


class _Clusters(msgspec.Struct):
    cluster_statuses: list[_Cluster] = []


_DECODER = msgspec.json.Decoder(_Clusters)


def parse_reading(body: bytes) -> LoadReading:
    """Read Envoy's ``/clusters?format=json``; raise `LoadFormatError`."""
    try:
        clusters = _DECODER.decode(body)
        hosts = [
            host
            for cluster in clusters.cluster_statuses
            if cluster.name == ENGINES_CLUSTER
            for host in cluster.host_statuses
        ]
        active = {_address(host): _number(host, "rq_active") for host in hosts}
        served = sum(_number(host, "rq_total") for host in hosts)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LoadFormatError("not the clusters of Envoy's admin listener") from error
    return LoadReading(
        active,
        frozenset(
            _address(host) for host in hosts if host.health_status.failed_active_health_check
        ),
        served,
    )


def _address(host: _Host) -> str:
    socket = host.address.socket_address
    if ":" in socket.address:
        return f"[{socket.address}]:{socket.port_value}"
    return f"{socket.address}:{socket.port_value}"


def _number(host: _Host, name: str) -> int:
    return next((int(stat.value) for stat in host.stats if stat.name == name), 0)


class LoadReader:
    """Keeps a ledger up to date. While Envoy is away the ledger lives on our own picks."""

    def __init__(
        self,
        admin: httpx.AsyncClient,
        ledger: LoadLedger,
        metrics: RouterMetrics,
        interval_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._admin = admin
        self._ledger = ledger
        self._metrics = metrics
        self._interval_s = interval_s
        self._sleep = sleep

    async def run(self) -> None:
        """Read for ever."""
        while True:
            started = self._clock()
            await self.read()
            took = self._clock() - started
            await self._pause(max(self._interval_s, min(PAUSE_FACTOR * took, MAX_PAUSE_S)))

    async def _pause(self, interval_s: float) -> None:
        """Wait one interval, or longer as long as nothing is picked.

        Picks count as load until the next reading, even when their requests are long answered.
        """
        for _ in range(IDLE_FACTOR):
            await self._sleep(interval_s)
            if not self._ledger.idle:
                return

    async def read(self) -> None:
        """Read once."""
        self._ledger.begin_reading()
        try:
            response = await self._admin.get("/clusters", params={"format": "json"})
            response.raise_for_status()
            reading = parse_reading(response.content)
        except (httpx.HTTPError, LoadFormatError):
            self._metrics.read_load("failed")
            return
        self._ledger.finish_reading(reading)
        self._metrics.read_load("ok")
