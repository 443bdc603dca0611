"""An httpx transport to a simulated engine in the same process: no sockets, so hundreds fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import httpx

from e2e.simulator.api import Api, Question
from e2e.simulator.simulated_engine import EngineDownError, SimulatedEngine


class _Body(httpx.AsyncByteStream):
    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """A client that leaves early aborts its request."""
        await self._chunks.aclose()


class SimulatorTransport(httpx.AsyncBaseTransport):
    """Raises what httpx raises for a real engine: refused, broken or late connections."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._api = Api(engine)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        question = Question(
            request.method,
            request.url.path,
            request.url.query.decode(),
            request.headers.get("content-type", ""),
            content,
        )
        limit = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(limit):
                reply = await self._api.handle(question)
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time", request=request) from error
        except EngineDownError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except ConnectionError as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        if reply.stream is not None:
            return httpx.Response(reply.status, headers=reply.headers, stream=_Body(reply.stream))
        return httpx.Response(reply.status, headers=reply.headers, content=reply.content)


def simulator_client(engine: SimulatedEngine, timeout_s: float = 60.0) -> httpx.AsyncClient:
    """Return a client of the engine."""
    return httpx.AsyncClient(
        base_url="http://simulator", transport=SimulatorTransport(engine), timeout=timeout_s
    )
