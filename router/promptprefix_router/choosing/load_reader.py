"""Reads how busy each endpoint is from Envoy's admin listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise

from promptprefix_router.choosing.engine_page import PageError
from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.envoy.endpoints_file import ENGINES_CLUSTER
from promptprefix_router.metrics import RouterMetrics

TARGET = "/clusters"

PAUSE_FACTOR = 20
"""A pause is at least so many times as long as the reading before it: the page of hundreds of pods
takes Envoy and the picker a while."""
MAX_PAUSE_S = 0.5
"""A reading that takes long on a busy machine must not leave the picker blind: picks pile up."""

IDLE_FACTOR = 10
"""An idle pool is read this many times less often."""


class LoadFormatError(ValueError):
    """Envoy's answer can't be read."""


_PREFIX = ENGINES_CLUSTER.encode() + b"::"
_FAILED_CHECKS = b"/failed_active_hc"


def parse_reading(page: bytes) -> LoadReading:
    """Read Envoy's ``/clusters``; raise `LoadFormatError`.

    As text, which costs Envoy and us a small part of what JSON does.
    """
    if b"\n" + _PREFIX not in b"\n" + page:
        raise LoadFormatError("not the clusters of Envoy's admin listener")
    try:
        active = {address: int(value) for address, value in _stat(page, b"rq_active")}
        served = sum(int(value) for _, value in _stat(page, b"rq_total"))
    except ValueError as error:
        raise LoadFormatError("no number of requests") from error
    flags = _stat(page, b"health_flags")
    unhealthy = frozenset(address for address, value in flags if _FAILED_CHECKS in value)
    return LoadReading(active, unhealthy, served)


def _stat(page: bytes, name: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what the lines ``engines::<address>::<name>::<value>`` say.

    Of thousands of lines three in twenty are of interest: no loop goes over all of them.
    """
    pieces = page.split(b"::%s::" % name)
    for before, after in pairwise(pieces):
        start = before.rpartition(b"\n")[2]
        if start.startswith(_PREFIX):
            yield start[len(_PREFIX) :].decode("latin-1"), after.partition(b"\n")[0]


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._fetch = fetch
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
            reading = parse_reading(await self._fetch())
        except (PageError, LoadFormatError):
            self._metrics.read_load("failed")
            return
        self._ledger.finish_reading(reading)
        self._metrics.read_load("ok")
