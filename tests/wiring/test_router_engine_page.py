"""An engine's page of metrics over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from promptprefix_router.choosing.engine_page import MAX_PAGE_BYTES, PageError, fetch_page

PAGE = b"vllm:num_requests_running 1.0\n" * 9000


@asynccontextmanager
async def serving(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve connections on loopback; give the port."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def fetch(port: int) -> bytes:
    """Fetch from loopback."""
    return await fetch_page("127.0.0.1", port, f"127.0.0.1:{port}")


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_page_of_a_real_server(chunked: bool) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        response = web.Response(body=PAGE)
        if chunked:
            response.enable_chunked_encoding()
        return response

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        assert await fetch(runner.addresses[0][1]) == PAGE
    finally:
        await runner.cleanup()
    assert asked == ["/metrics?name[]=vllm:num_requests_running&name[]=vllm:num_requests_waiting"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"SSH-2.0-server\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % 10**9 + b"x" * (MAX_PAGE_BYTES + 1),
    ],
)
async def test_what_is_no_page_is_an_error(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with serving(talk) as port:
        with pytest.raises(PageError):
            await fetch(port)


async def test_nobody_there_is_an_error() -> None:
    async with serving(lambda _r, _w: asyncio.sleep(0)) as port:
        pass
    with pytest.raises(PageError):
        await fetch(port)
