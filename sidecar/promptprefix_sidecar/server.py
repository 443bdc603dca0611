"""The sidecar's own port: health, readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from promptprefix_sidecar.gate import Gate


def make_app(gate: Gate, metrics_page: Callable[[], bytes]) -> web.Application:
    """Return the application; nothing it serves holds a declared text."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        closed = gate.why_closed()
        return web.Response(status=503 if closed else 200, text=f"{closed or 'ok'}\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics_page(), headers={"content-type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app
