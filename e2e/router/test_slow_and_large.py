"""Bodies over the limit, clients that are slow, and pods that vanish in the middle of a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from e2e.router.samples import CHAT, ask, declared, pool, prefix, undeclared
from e2e.router.stack import MODEL, RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

MEBIBYTE = 1024 * 1024
BY_HEADER = {"x-promptprefix": "support-triage"}
ways = pytest.mark.parametrize("headers", [{}, BY_HEADER], ids=["picked", "by-header"])


class RawEngine:
    """An engine on one port that reads a request's head, and the rest when ``go`` is set.

    Questions for its health and load are no requests, and are answered.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.requests = 0
        self.name = "raw"
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith((b"GET /health", b"GET /metrics")):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            self.requests += 1
            await self.go.wait()
        writer.close()


async def publish_only(stack: RouterStack, engine: RawEngine, others: int = 2) -> None:
    """Make ``engine`` the only warm pod; ``others`` serve the model."""
    (raw,) = pool(stack.engines[:1], warm="a")
    first = raw.model_copy(update={"port": engine.port, "pod": "raw", "pod_uid": "raw"})
    await stack.publish((prefix(),), (first, *pool(stack.engines[1 : 1 + others])))


@ways
async def test_a_pod_that_vanishes_with_a_request_is_not_asked_twice(
    stack: RouterStack, headers: dict[str, str]
) -> None:
    """It may have begun: the client hears of it, and no other pod computes it again."""
    engine = RawEngine()
    async with engine.serving():
        await publish_only(stack, engine)
        engine.go.set()
        response = await stack.client.post(f"{stack.url}{CHAT}", json=declared(), headers=headers)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"
    assert engine.requests == 1
    assert all(each.seen == [] for each in stack.engines)


@ways
async def test_a_large_body_takes_no_memory(stack: RouterStack, headers: dict[str, str]) -> None:
    """An engine that does not read stops the client; Envoy holds no more than its buffers."""
    engine = RawEngine()
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        yield json.dumps({"model": MODEL, "messages": []})[:-1].encode() + b', "pad": "'
        for _ in range(100):
            yield b"x" * MEBIBYTE
            sent += 1
        yield b'"}'

    assert stack.envoy is not None
    async with engine.serving():
        await publish_only(stack, engine, others=0)
        before = resident(stack.envoy.pid)
        task = asyncio.create_task(
            stack.client.post(f"{stack.url}{CHAT}", content=body(), headers=headers)
        )

        looks: list[int] = []

        async def stuck() -> bool:
            looks.append(sent)
            return engine.requests == 1 and looks[-25:] == [sent] * 25

        await until(stuck, "the client can send no more")
        grown = resident(stack.envoy.pid) - before
        task.cancel()
        engine.go.set()
        await asyncio.wait([task])
    assert sent < 50
    assert grown < 32 * MEBIBYTE


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) * 1024


async def test_slow_bodies_hold_nobody_up(stack: RouterStack) -> None:
    """Envoy waits for them; the picker is asked when they are whole."""
    body = json.dumps(declared()).encode()
    slow = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(40)]
    for _, writer in slow:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:-1])
    before = await stack.metric("promptprefix_router_decisions_total")
    for _ in range(10):
        assert (await ask(stack, undeclared())).status_code == 200
    assert await stack.metric("promptprefix_router_decisions_total") == before + 10
    for _, writer in slow:
        writer.write(body[-1:])
    for reader, writer in slow:
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_a_slow_head_is_cut_off(stack: RouterStack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode())
    async with asyncio.timeout(20):
        assert b" 408 " in await reader.readline()
    writer.close()


async def test_a_pool_of_one_is_served_as_soon_as_it_is_back(stack: RouterStack) -> None:
    """Its failures leave it out of nothing: there is no other."""
    engine = stack.engines[0]
    await stack.publish((prefix(),), pool([engine], warm="a"))
    await engine.stop()
    try:
        for headers in ({}, BY_HEADER):
            response = await stack.client.post(
                f"{stack.url}{CHAT}", json=declared(), headers=headers
            )
            assert response.status_code == 503
    finally:
        await engine.start()

    async def back() -> bool:
        try:
            return (await ask(stack, declared())).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    await until(back, "the pod is served again", within=3.0)
