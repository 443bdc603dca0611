"""The picker's parts on real sockets: questions, metrics and Envoy's admin."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.engine_page import PageError
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.load_reader import ENDPOINTS_PER_S, MAX_PAUSE_S, LoadReader
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import open_door
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

from .router_tables import route_table

NO_PODS = b"engines::added_via_api::false\n"


def picker_parts() -> tuple[Picker, LoadLedger, RouterMetrics]:
    """Return a picker with one endpoint."""
    memo = FingerprintMemo(4)
    metrics = RouterMetrics(memo, time.monotonic)
    ledger = LoadLedger()
    chooser = Chooser(ledger, PromptHistory(100), CostKnobs(), time.monotonic)
    picker = Picker(Matcher(memo), chooser, MatchTally(time.time), metrics, time.perf_counter)
    picker.use(Routes.from_table(route_table(1), "ml"))
    return picker, ledger, metrics


@asynccontextmanager
async def served(
    handler: Callable[..., object], body_limit: int = 1024
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve ``handler`` on loopback and give a client of it."""
    server = await open_door(handler, "127.0.0.1", 0, body_limit)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client
    server.close()
    await server.wait_closed()


async def test_a_question_over_the_wire_is_answered_and_counted() -> None:
    picker, _, metrics = picker_parts()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    door = ExtAuthz(picker, 1024)
    async with served(door.answer) as decisions, served(metrics.answer) as exposition:
        response = await decisions.post("/v1/chat/completions", json=body)
        assert response.headers["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
        text = (await exposition.get("/metrics")).text
        assert 'decisions_total{match="undeclared",outcome="least-loaded"} 1.0' in text
        assert "promptprefix_router_decision_seconds_count 1.0" in text
        assert "promptprefix_router_memo_hits_total 0.0" in text
        assert (await exposition.get("/healthz")).status_code == 200
        assert (await exposition.get("/other")).status_code == 404


async def test_the_reader_fills_the_ledger() -> None:
    _, ledger, metrics = picker_parts()
    answers = deque([b"engines::10.0.0.1:8000::rq_active::4\n"])

    async def fetch() -> bytes:
        if not answers:
            raise PageError("status 503")
        return answers.popleft()

    reader = LoadReader(fetch, ledger, metrics, 0.001)
    ledger.pick("10.0.0.1:8000")
    await reader.read()
    assert ledger.load("10.0.0.1:8000") == 4
    await reader.read()
    assert ledger.load("10.0.0.1:8000") == 4


async def test_an_idle_pool_is_read_again_one_interval_after_a_pick() -> None:
    _, ledger, metrics = picker_parts()
    events: list[str] = []

    async def fetch() -> bytes:
        events.append("read")
        return NO_PODS

    async def sleep(_: float) -> None:
        events.append("sleep")
        if len(events) == 5:
            ledger.pick("10.0.0.1:8000")
        if events.count("read") == 2:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await LoadReader(fetch, ledger, metrics, 0.1, sleep).run()
    assert events == ["read", "sleep", "sleep", "sleep", "sleep", "read", "sleep"]


async def test_hundreds_of_endpoints_are_read_less_often() -> None:
    _, ledger, metrics = picker_parts()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    async def fetch() -> bytes:
        return NO_PODS

    for count in (5, 300, 10_000):
        ledger.seat({f"10.0.0.1:{n}": n for n in range(count)})
        with pytest.raises(asyncio.CancelledError):
            await LoadReader(fetch, ledger, metrics, 0.1, sleep).run()
    assert pauses == pytest.approx([0.1, 300 / ENDPOINTS_PER_S, MAX_PAUSE_S])
