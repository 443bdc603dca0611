"""Restarts that only an outage tells of: engines that don't publish when they started."""

from __future__ import annotations

import httpx
import pytest

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.watcher import TOLERATED_TIMEOUTS, Watcher

ANSWERS = {
    "/health": httpx.Response(200),
    "/metrics": httpx.Response(200, text=""),
    "/v1/models": httpx.Response(200, json={"data": [{"id": "m"}]}),
    "/version": httpx.Response(200, json={"version": "1"}),
}


class Engine:
    """``trouble`` is what meets every request, if anything."""

    def __init__(self) -> None:
        self.trouble: type[httpx.TransportError] | httpx.Response | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.trouble, httpx.Response):
            return self.trouble
        if self.trouble is not None:
            raise self.trouble("no", request=request)
        return ANSWERS[request.url.path]


@pytest.mark.parametrize(
    ("before", "restarts"),
    [
        ([httpx.ConnectError], 1),
        ([httpx.ConnectError] * 3, 1),
        ([httpx.Response(503), httpx.ConnectError], 1),
        ([httpx.ReadTimeout] * (TOLERATED_TIMEOUTS + 1) + [httpx.ConnectError], 1),
        ([httpx.ConnectError, httpx.Response(503), httpx.ConnectError], 1),
        ([httpx.Response(503)], 0),
        ([httpx.ReadTimeout] * (TOLERATED_TIMEOUTS + 1), 0),
    ],
)
async def test_an_engine_that_was_gone_counts_as_another_one(
    before: list[type[httpx.TransportError] | httpx.Response], restarts: int
) -> None:
    engine, board, seen = Engine(), Board(), []
    client = httpx.AsyncClient(
        base_url="http://engine", transport=httpx.MockTransport(engine.answer)
    )
    watcher = Watcher(EngineApi(client), board, lambda: seen.append(1))
    await watcher.look()
    boot = board.snapshot.boot
    for trouble in before:
        engine.trouble = trouble
        await watcher.look()
    assert board.snapshot.boot == boot
    engine.trouble = None
    await watcher.look()
    assert board.snapshot.engine.healthy
    assert (board.snapshot.boot != boot, len(seen)) == (bool(restarts), restarts)
