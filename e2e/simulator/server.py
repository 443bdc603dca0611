"""The simulated engine on a port, for clients of other processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from aiohttp import web

from e2e.simulator.api import Api, Question, Reply
from e2e.simulator.simulated_engine import SimulatedEngine

MAX_BODY = 64 * 1024 * 1024


def make_app(engine: SimulatedEngine) -> web.Application:
    """Return the whole API as an application."""
    api = Api(engine)

    async def answer(request: web.Request) -> web.StreamResponse:
        question = Question(
            request.method,
            request.path,
            request.query_string,
            request.headers.get("content-type", ""),
            await request.read(),
        )
        try:
            reply = await api.handle(question)
        except ConnectionError:
            return _broken(request)
        if reply.stream is None:
            return web.Response(status=reply.status, body=reply.content, headers=reply.headers)
        return await _streamed(request, reply, reply.stream)

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def _broken(request: web.Request) -> web.StreamResponse:
    """Break the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


async def _streamed(
    request: web.Request, reply: Reply, chunks: AsyncGenerator[bytes, None]
) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    await response.prepare(request)
    try:
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
    except ConnectionError:
        return _broken(request)
    finally:
        await chunks.aclose()
    return response


@contextlib.asynccontextmanager
async def serving(
    engine: SimulatedEngine, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port."""
    # A client that hangs up aborts its request, so handlers are cancelled then.
    runner = web.AppRunner(make_app(engine), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        engine.crash()
        await runner.cleanup()
