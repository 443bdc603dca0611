"""Listens for gateways: gRPC over HTTP/2, with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping

from promptprefix_router.gateway.grpc_call import Service
from promptprefix_router.gateway.grpc_connection import Connection
from promptprefix_router.gateway.grpc_limits import Limits

HANDSHAKE_S = 10.0


class GrpcServer:
    """Serves ``services``, by the path of their method, from `listen` until `stop`."""

    def __init__(self, services: Mapping[str, Service], limits: Limits) -> None:
        self._services = {path.encode(): service for path, service in services.items()}
        self._limits = limits
        self._server: asyncio.Server | None = None

    async def listen(
        self, host: str, port: int, context: ssl.SSLContext | None, shared: bool = False
    ) -> int:
        """Listen; return the port. Raises `OSError` if it can't be had.

        ``shared``: other processes listen on it, too.
        """
        loop = asyncio.get_running_loop()
        patience_s = None if context is None else HANDSHAKE_S
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._services, self._limits),
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=patience_s,
                reuse_port=shared,
            )
        except OSError as error:
            raise OSError(f"can't listen on {host}, port {port}") from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self, grace_s: float) -> int:
        """Open no more calls, wait for those that are open for so long, and cut the rest off.

        Return how many were cut.
        """
        if self._server is not None:
            self._server.close()
        for connection in list(self._limits.connections):
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._limits.connections:
                    self._limits.left.clear()
                    await self._limits.left.wait()
        cut = self._limits.open
        for connection in list(self._limits.connections):
            connection.cut()
        await asyncio.sleep(0)
        return cut
