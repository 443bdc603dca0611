"""gRPC health of the gateway door: the names that the endpoint-picker protocol lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

LIVENESS = "liveness"
READINESS = "readiness"
EXTERNAL_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"

CHECK_INTERVAL_S = 0.5

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GatewayHealth:
    """Alive from the start; ready once the picker has a route table, and until it stops."""

    def __init__(
        self,
        ready: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ready = ready
        self._sleep = sleep
        self._servicer = health_aio.HealthServicer()

    async def serve_on(self, server: grpc.aio.Server) -> None:
        """Add the service to ``server``."""
        await self._servicer.set(LIVENESS, _SERVING)
        await self._tell()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def run(self) -> None:
        """Follow the picker's state for ever."""
        while True:
            await self._sleep(CHECK_INTERVAL_S)
            await self._tell()

    async def leave(self) -> None:
        """Say to whoever asks that nothing is served here any more."""
        await self._servicer.enter_graceful_shutdown()

    async def _tell(self) -> None:
        status = _SERVING if self._ready() else _NOT_SERVING
        for name in ("", READINESS, EXTERNAL_PROCESSOR):
            await self._servicer.set(name, status)
