"""Reads from engines how many requests they have: others send some too, past our Envoy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence

from promptprefix_router.choosing.engine_page import PageError, fetch_page
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.control.routes import Endpoint
from promptprefix_router.metrics import RouterMetrics

AT_ONCE = 8
"""Engines that are asked at a time."""
PAGES_PER_S = 50
"""A page costs about 0.2 ms of a core: hundreds of engines are read less often."""
MOST_REQUESTS = 1_000_000
"""A page that says more is none."""
MOST_FAILURES = 3
"""What an engine last said is believed until so many answers in a row have failed."""
WEIGHT = 0.25
"""Share of the latest answer in what is believed, so that several routers don't all run to an
engine that was idle a moment ago, and away from it again."""

_REQUESTS = re.compile(
    rb"\nvllm:num_requests_(?:running|waiting)[{ ](?:.* )?([0-9.eE+-]+)[ \t]*\r?$", re.MULTILINE
)


def requests_of(page: bytes) -> int:
    """Return the requests that an engine runs or has waiting, of all its ranks and models.

    ``page`` is vLLM's ``/metrics``. Raises `PageError`.
    """
    found = _REQUESTS.findall(b"\n" + page)
    if not found:
        raise PageError("no vllm:num_requests_running, no vllm:num_requests_waiting")
    try:
        requests = sum(map(float, found))
    except ValueError as error:
        raise PageError("not a number of requests") from error
    if not requests <= MOST_REQUESTS:
        raise PageError("no number of requests")
    return round(requests)


def blended(before: float | None, latest: int) -> float:
    """Return what is believed after an answer: the first one counts whole."""
    return latest if before is None else before + WEIGHT * (latest - before)


class EngineReader:
    """Tells the ledger what each engine has beyond the requests that the ledger counts.

    Engines serve their metrics to everybody, on the port of their API and without a key.
    """

    def __init__(
        self,
        endpoints: Callable[[], Iterable[Endpoint]],
        ledger: LoadLedger,
        metrics: RouterMetrics,
        interval_s: float,
        fetch: Callable[[str, int, str], Awaitable[bytes]] = fetch_page,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fetch = fetch
        self._endpoints = endpoints
        self._ledger = ledger
        self._metrics = metrics
        self._interval_s = interval_s
        self._sleep = sleep
        self._failures: dict[str, int] = {}
        self._others: dict[str, float] = {}

    async def run(self) -> None:
        """Read for ever."""
        while True:
            asked = await self.read()
            await self._sleep(max(self._interval_s, asked / PAGES_PER_S))

    async def read(self) -> int:
        """Ask every ready engine once; return how many were asked."""
        ready = [endpoint for endpoint in self._endpoints() if endpoint.ready]
        addresses = [endpoint.address for endpoint in ready]
        self._failures = {each: self._failures.get(each, 0) for each in addresses}
        self._others = {each: self._others[each] for each in addresses if each in self._others}
        shares = [ready[start::AT_ONCE] for start in range(min(AT_ONCE, len(ready)))]
        async with asyncio.TaskGroup() as tasks:
            for share in shares:
                tasks.create_task(self._read_in_turn(share))
        return len(ready)

    async def _read_in_turn(self, endpoints: Sequence[Endpoint]) -> None:
        for endpoint in endpoints:
            address = endpoint.address
            own = self._ledger.own(address)
            try:
                requests = requests_of(await self._fetch(endpoint.host, endpoint.port, address))
            except PageError:
                self._metrics.read_engine("failed")
                self._failures[address] += 1
                if self._failures[address] >= MOST_FAILURES:
                    self._others.pop(address, None)
                    self._ledger.count_others(address, 0)
                continue
            self._failures[address] = 0
            self._metrics.read_engine("ok")
            # A request of ours may begin or end while the engine answers.
            own = max(own, self._ledger.own(address))
            others = blended(self._others.get(address), max(0, requests - own))
            self._others[address] = others
            self._ledger.count_others(address, round(others))
