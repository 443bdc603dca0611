"""Listening on a port."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack

from aiohttp import web

IDLE_SECONDS = 60.0
"""A connection that asks nothing for this long is closed; anybody can open one."""


async def listen(
    stack: AsyncExitStack,
    app: web.Application,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
) -> int:
    """Serve ``app`` and return the port."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, ssl_context=context)
    await site.start()
    return int(runner.addresses[0][1])
