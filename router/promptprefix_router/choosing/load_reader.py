"""Reads how busy each endpoint is from Envoy's admin listener."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from promptprefix_router.choosing.engine_page import PageError
from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.envoy.endpoints_file import ENGINES_CLUSTER
from promptprefix_router.metrics import RouterMetrics

TARGET = "/clusters"

ENDPOINTS_PER_S = 1000
"""A reading takes Envoy and the picker together about 15 µs for each endpoint: the more there are,
the less often they are read."""
MAX_PAUSE_S = 1.0
"""A picker must not be blind for longer, however many there are: picks pile up."""

IDLE_FACTOR = 10
"""An idle pool is read this many times less often."""


class LoadFormatError(ValueError):
    """Envoy's answer can't be read."""


_PREFIX = ENGINES_CLUSTER.encode() + b"::"
_FAILED_CHECKS = b"/failed_active_hc"
_ACTIVE = re.compile(rb"::rq_active::(.*)")
_SERVED = re.compile(rb"::rq_total::(.*)")
_FAILED = re.compile(b"::health_flags::.*" + re.escape(_FAILED_CHECKS))


def parse_reading(page: bytes) -> LoadReading:
    """Read Envoy's ``/clusters``; raise `LoadFormatError`.

    As text, which costs Envoy and us a small part of what JSON does.
    """
    engines = _of_engines(b"\n%s\n" % page)
    found = _ACTIVE.finditer(engines)
    try:
        # Of hundreds of endpoints most are idle: only the names of the others are looked at.
        active = {_address(engines, each): int(each[1]) for each in found if each[1] != b"0"}
        served = sum(map(int, _SERVED.findall(engines)))
    except ValueError as error:
        raise LoadFormatError("no number of requests") from error
    unhealthy: frozenset[str] = frozenset()
    if _FAILED_CHECKS in engines:
        unhealthy = frozenset(_address(engines, each) for each in _FAILED.finditer(engines))
    return LoadReading(active, unhealthy, served)


def _of_engines(page: bytes) -> bytes:
    """Return the part of a page about the engines; raise `LoadFormatError` if there is none.

    The lines of a cluster come one after the other.
    """
    start = page.find(b"\n" + _PREFIX)
    if start < 0:
        raise LoadFormatError("not the clusters of Envoy's admin listener")
    return page[start : page.find(b"\n", page.rfind(b"\n" + _PREFIX) + 1)]


def _address(page: bytes, found: re.Match[bytes]) -> str:
    """Return the address of the line ``engines::<address>::<name>::<value>``."""
    start = page.rfind(b"\n", 0, found.start()) + 1 + len(_PREFIX)
    return page[start : found.start()].decode("latin-1")


class LoadReader:
    """Keeps a ledger up to date. While Envoy is away the ledger lives on our own picks.

    ``fetch`` gets `TARGET` from Envoy's admin listener, or raises `PageError`.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        ledger: LoadLedger,
        metrics: RouterMetrics,
        interval_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fetch = fetch
        self._ledger = ledger
        self._metrics = metrics
        self._interval_s = interval_s
        self._sleep = sleep

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.read()
            endpoints_s = self._ledger.endpoints / ENDPOINTS_PER_S
            await self._pause(max(self._interval_s, min(endpoints_s, MAX_PAUSE_S)))

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
            reading = parse_reading(await self._fetch())
        except (PageError, LoadFormatError):
            self._metrics.read_load("failed")
            return
        self._ledger.finish_reading(reading)
        self._metrics.read_load("ok")
