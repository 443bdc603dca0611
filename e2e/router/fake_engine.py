"""A fake OpenAI server that remembers what reached it. It computes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

KEPT_BODY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class SeenRequest:
    """One request as it arrived; ``body`` is empty if it was longer than the fake keeps."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    size: int
    sha256: str


@dataclass
class FakeEngine:
    """One backend on loopback. ``healthy`` decides what ``/health`` answers."""

    name: str
    port: int = 0
    healthy: bool = True
    seen: list[SeenRequest] = field(default_factory=list)
    active: int = 0
    others: int = 0
    """Requests of others that its metrics tell of."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it; a stream waits for it after its first chunk."""
    _runner: web.AppRunner | None = None

    async def start(self) -> Self:
        """Listen on a free port, or again on the one it had."""
        self.hold.set()
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Close the port and all connections."""
        self.hold.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        running = f'vllm:num_requests_running{{engine="0"}} {self.active + self.others}.0'
        return web.Response(text=f'{running}\nvllm:num_requests_waiting{{engine="0"}} 0.0\n')

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.active += 1
        try:
            self.seen.append(await _read(request))
            if request.headers.get("x-test-stream"):
                return await self._stream(request)
            await self.hold.wait()
            return web.json_response({"engine": self.name})
        finally:
            self.active -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        await asyncio.sleep(float(request.headers.get("x-test-pause", 0)))
        await self.hold.wait()
        await response.write(b"data: last\n\n")
        await response.write_eof()
        return response


async def _read(request: web.Request) -> SeenRequest:
    digest, size, kept = hashlib.sha256(), 0, bytearray()
    async for chunk in request.content.iter_any():
        digest.update(chunk)
        size += len(chunk)
        if size <= KEPT_BODY_BYTES:
            kept += chunk
    return SeenRequest(
        method=request.method,
        path=request.raw_path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=bytes(kept) if size <= KEPT_BODY_BYTES else b"",
        size=size,
        sha256=digest.hexdigest(),
    )
