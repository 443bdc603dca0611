"""What the picker asks Envoy's admin listener to know which names it resolved, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest

from promptprefix.wire import Revision, RouteEndpoint, RoutePrefix, RouteTable
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.envoy.client_routes import RouteRules
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.header_count_reader import HeaderCountReader
from promptprefix_router.envoy.header_counts import HeaderCounts
from promptprefix_router.envoy.publisher import EnvoyPublisher
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.matching.matcher import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics

ROUTES = Routes.from_table(
    RouteTable(
        revision=Revision(term=1, number=1),
        prefixes=(RoutePrefix(id="v", name="p", tenant="ml", model="m", fingerprint="f"),),
        endpoints=(
            RouteEndpoint(
                pod_uid="u",
                pod="p",
                namespace="ml",
                address="10.0.0.1",
                port=8000,
                models=("m",),
                ready=True,
            ),
        ),
    ),
    "ml",
)


class Stand:
    """A reader of a fake Envoy that resolved ``count`` requests; ``asked`` are its paths."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self.status = 200
        self.uptime = "60s"
        self.served = 0
        self.asked: list[str] = []
        self.metrics = RouterMetrics(FingerprintMemo(1), time.monotonic)
        self.tally = MatchTally(time.time)
        self.tally.retain(ROUTES.ids)
        self.publisher = EnvoyPublisher(
            EndpointsFile(folder), RoutesFile(folder, RouteRules()), self.metrics
        )
        self.admin = httpx.AsyncClient(
            transport=httpx.MockTransport(self._answer), base_url="http://envoy"
        )
        self.naps: list[Callable[[], None]] = []
        self.reader = HeaderCountReader(
            self.admin,
            HeaderCounts(folder, self.tally, self.metrics),
            self.publisher,
            lambda: self.served,
            self.metrics,
            sleep=self._sleep,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/server_info":
            return httpx.Response(self.status, json={"uptime_current_epoch": self.uptime})
        text = f"vhost.clients.route.p.upstream_rq_total: {self.count}\n"
        return httpx.Response(self.status, text=text)

    async def _sleep(self, _seconds: float) -> None:
        """Do what happens meanwhile; the reader ends when nothing more does."""
        if not self.naps:
            raise asyncio.CancelledError
        self.naps.pop(0)()

    @property
    def counted(self) -> int:
        """Requests that are counted by now."""
        return sum(match.count for match in self.tally.untold(9))

    def readings(self, result: str) -> bool:
        """Return whether there was a reading with this result."""
        name = f'promptprefix_router_header_readings_total{{result="{result}"}}'
        return name in generate_latest(self.metrics.registry).decode()


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Return a reader with a published plan."""
    stand = Stand(tmp_path)
    stand.publisher.publish(ROUTES)
    return stand


async def test_a_reading_counts(stand: Stand) -> None:
    stand.count = 3
    assert await stand.reader.read()
    assert stand.counted == 3
    assert stand.readings("ok")


async def test_nothing_is_read_while_nothing_is_served(stand: Stand) -> None:
    def more() -> None:
        stand.served += 1
        stand.count += 1

    stand.naps = [lambda: None, lambda: None, more, lambda: None]
    with pytest.raises(asyncio.CancelledError):
        await stand.reader.run()
    # Once at the start, since nobody knows what was before, and once for the request.
    assert stand.asked == ["/server_info", "/stats"] * 2
    assert stand.counted == 1


@pytest.mark.parametrize(("status", "uptime"), [(503, "60s"), (200, "soon"), (200, "")])
async def test_a_failure_loses_nothing(stand: Stand, status: int, uptime: str) -> None:
    stand.count = 3
    stand.status, stand.uptime = status, uptime
    assert not await stand.reader.read()
    assert stand.counted == 0
    assert stand.readings("failed")
    stand.status, stand.uptime = 200, "61s"
    assert await stand.reader.read()
    assert stand.counted == 3


async def test_before_a_route_table_came_nothing_is_taken(tmp_path: Path) -> None:
    """What Envoy resolved by the file of a former picker is counted when the names are known."""
    stand = Stand(tmp_path)
    stand.count = 3
    assert not await stand.reader.read()
    assert stand.asked == []
    stand.publisher.publish(ROUTES)
    assert await stand.reader.read()
    assert stand.counted == 3
