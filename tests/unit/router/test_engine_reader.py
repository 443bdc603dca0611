"""What is read from engines, and how long it is believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from promptprefix_router.choosing.engine_page import PageError
from promptprefix_router.choosing.engine_reader import (
    AT_ONCE,
    MOST_FAILURES,
    PAGES_PER_S,
    EngineReader,
    requests_of,
)
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics

from .samples import endpoint, routes

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} b"} 3.0
vllm:num_requests_running{engine="1",model_name="a} b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a} b"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 70.0
vllm:num_requests_running_created{engine="0"} 1.7e+09
"""
ADDRESS = "10.0.0.1:8000"


@pytest.mark.parametrize(
    ("page", "requests"),
    [
        (PAGE, 6),
        (PAGE.replace(b"\n", b"\r\n"), 6),
        (b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1e1\n", 12),
        (b"vllm:num_requests_running{} 0.0", 0),
    ],
)
def test_running_and_waiting_of_all_ranks_count(page: bytes, requests: int) -> None:
    assert requests_of(page) == requests


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running 1e\n",
        b"vllm:num_requests_running 9e999\n",
        b"vllm:num_requests_running 1e300\n",
        b"vllm:num_requests_running{} 1 2\nvllm:num_requests_running{} -\n",
    ],
)
def test_other_pages_are_an_error(page: bytes) -> None:
    with pytest.raises(PageError):
        requests_of(page)


class Stand:
    """A reader of engines whose pages ``answer`` gives, or raises `PageError`."""

    def __init__(self, answer: Callable[[str], bytes], engines: int = 1) -> None:
        self.ledger = LoadLedger()
        table = routes(*(endpoint(n) for n in range(1, engines + 1)), endpoint(99, ready=False))
        self.ledger.seat({each.address: seat for seat, each in enumerate(table.endpoints)})
        self.metrics = RouterMetrics(FingerprintMemo(4), time.monotonic)

        async def fetch(_host: str, _port: int, address: str) -> bytes:
            return answer(address)

        self._reader = EngineReader(lambda: table.endpoints, self.ledger, self.metrics, 1.0, fetch)

    async def read(self) -> int:
        """Read once; return the load of the first engine."""
        await self._reader.read()
        return self.ledger.load(ADDRESS)

    def readings(self, result: str) -> float | None:
        """Return how many readings had this result."""
        name = "promptprefix_router_engine_readings_total"
        return self.metrics.registry.get_sample_value(name, {"result": result})


async def test_what_an_engine_has_beyond_our_own_is_others() -> None:
    stand = Stand(lambda _: PAGE)
    stand.ledger.pick(ADDRESS)
    stand.ledger.pick(ADDRESS)
    assert await stand.read() == 6
    assert stand.ledger.others == 4


async def test_requests_that_are_all_ours_are_counted_once() -> None:
    stand = Stand(lambda _: PAGE)
    for _ in range(9):
        stand.ledger.pick(ADDRESS)
    assert await stand.read() == 9


async def test_one_that_ends_while_the_engine_answers_is_no_others() -> None:
    def answer(_: str) -> bytes:
        stand.ledger.end(ADDRESS)
        return PAGE

    stand = Stand(answer)
    for _ in range(6):
        stand.ledger.pick(ADDRESS)
    assert await stand.read() == 5
    assert stand.ledger.others == 0


async def test_a_change_is_believed_bit_by_bit() -> None:
    numbers = iter([8, 0, 0, 0])
    stand = Stand(lambda _: b"vllm:num_requests_running %d" % next(numbers))
    assert [await stand.read() for _ in range(4)] == [8, 6, 4, 3]


@pytest.mark.parametrize("unreachable", [True, False])
async def test_failures_in_a_row_end_the_belief(unreachable: bool) -> None:
    pages = iter([PAGE, *[b""] * MOST_FAILURES, PAGE])

    def answer(_: str) -> bytes:
        page = next(pages)
        if unreachable and not page:
            raise PageError("gone")
        return page

    stand = Stand(answer)
    loads = [await stand.read() for _ in range(MOST_FAILURES + 2)]
    assert loads == [6, *[6] * (MOST_FAILURES - 1), 0, 6]
    assert stand.readings("failed") == MOST_FAILURES
    assert stand.readings("ok") == 2


async def test_every_ready_engine_is_asked_once() -> None:
    asked: list[str] = []

    def answer(address: str) -> bytes:
        asked.append(address)
        return PAGE

    count = 3 * AT_ONCE + 1
    await Stand(answer, engines=count).read()
    assert sorted(asked) == sorted(f"10.0.0.{n}:8000" for n in range(1, count + 1))


async def test_hundreds_of_engines_are_read_less_often() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    async def fetch(_host: str, _port: int, _address: str) -> bytes:
        return PAGE

    for count in (1, PAGES_PER_S, 2 * PAGES_PER_S):
        table = routes(*(endpoint(n) for n in range(1, count + 1)))
        ledger, metrics = LoadLedger(), RouterMetrics(FingerprintMemo(4), time.monotonic)
        reader = EngineReader(lambda at=table: at.endpoints, ledger, metrics, 1.0, fetch, sleep)  # type: ignore[misc]
        with pytest.raises(asyncio.CancelledError):
            await reader.run()
    assert pauses == [1.0, 1.0, 2.0]
