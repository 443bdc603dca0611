"""The control port of a replica that doesn't lead, or leads no longer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from promptprefix.wire import STANDBY_STATUS
from promptprefix_operator.control_api import ControlApi, control_application

PATHS = [
    ("POST", "/v1/sidecar/sync"),
    ("GET", "/v1/routes"),
    ("GET", f"/v1/content/{'0' * 64}"),
    ("GET", "/"),
]


class Leader:
    """Stands for the handlers; answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.leads = True

    def __call__(self) -> ControlApi | None:
        return cast(ControlApi, self) if self.leads else None

    async def routes(self, _: web.Request) -> web.StreamResponse:
        self.asked.set()
        await self.answer.wait()
        return web.Response(text="the routes")


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(ControlApi, "routes", Leader.routes)
    return Leader()


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_standby_tells_nothing(leader: Leader, method: str, path: str) -> None:
    leader.leads = False
    async with TestClient(TestServer(control_application(leader))) as client:
        for headers in ({}, {"Authorization": "Bearer pod"}):
            async with client.request(method, path, headers=headers, data=b"{") as answer:
                assert answer.status == STANDBY_STATUS
                assert answer.headers["Connection"] == "close"
                assert list(await answer.json()) == ["message"]


@pytest.mark.parametrize(("leads", "status"), [(True, 200), (False, STANDBY_STATUS)])
async def test_an_answer_needs_the_lead_until_its_end(
    leader: Leader, leads: bool, status: int
) -> None:
    async with TestClient(TestServer(control_application(leader))) as client:
        asking = asyncio.create_task(client.get("/v1/routes"))
        await leader.asked.wait()
        leader.leads = leads
        leader.answer.set()
        async with await asking as answer:
            assert answer.status == status
            assert ("the routes" in await answer.text()) == leads


async def test_the_connection_of_a_standby_ends(leader: Leader) -> None:
    leader.leads = False
    async with TestServer(control_application(leader)) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /v1/routes HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 421 ")
