"""What stands between the operators and others in tests of failover: a Service, and a witness.

No node runs, so nothing implements Services; `Service` spreads connections as one would. `Witness`
stands between one operator and the API server and remembers every write.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web


@dataclass
class Service:
    """Gives each new connection to the next of the backends that are ready."""

    backends: Callable[[], list[int]]
    port: int = 0
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = self.backends()
        try:
            if not ports:
                return
            port = ports[next(self._turn) % len(ports)]
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.TaskGroup() as group:
                    back = group.create_task(_copy(theirs, writer))
                    await _copy(reader, ours)
                    back.cancel()
            finally:
                ours.close()
        except OSError:
            pass
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends, and end the other."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@asynccontextmanager
async def service(backends: Callable[[], list[int]]) -> AsyncIterator[Service]:
    found = Service(backends)
    server = await asyncio.start_server(found.carry, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


@dataclass
class Witness:
    """Hands requests to the API server; ``writes`` are those that change something, in order."""

    kubeconfig: dict[str, Any]
    session: aiohttp.ClientSession
    writes: list[str] = field(default_factory=list)

    async def hand_on(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
        server = self.kubeconfig["clusters"][0]["cluster"]["server"]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS}
        async with self.session.request(
            request.method,
            server + request.path_qs,
            headers=headers,
            data=await request.read() or None,
            skip_auto_headers=("Content-Type", "User-Agent"),
            ssl=self._context(),
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.content_type}
            )
            with suppress(OSError):  # the operator gave up
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    def _context(self) -> ssl.SSLContext:
        data = self.kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())


_OWN_HEADERS = ("host", "content-length", "transfer-encoding", "accept-encoding")


@asynccontextmanager
async def witness(kubeconfig: dict[str, Any]) -> AsyncIterator[tuple[Witness, dict[str, Any]]]:
    """Return it with the kubeconfig that leads through it."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        found = Witness(kubeconfig, session)
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", found.hand_on)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        clusters = [{**each, "cluster": cluster} for each in kubeconfig["clusters"]]
        try:
            yield found, {**kubeconfig, "clusters": clusters}
        finally:
            await runner.cleanup()
