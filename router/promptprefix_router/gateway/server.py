"""The gateway door with its server: TLS, health, and an orderly end."""

from __future__ import annotations

import asyncio
import datetime

import grpc
import grpc.aio
import structlog

from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.gateway.ext_proc_door import BODY_PATIENCE_S, ExtProcDoor
from promptprefix_router.gateway.gateway_metrics import GatewayMetrics
from promptprefix_router.gateway.gateway_picker import GatewayPicker
from promptprefix_router.gateway.health import GatewayHealth
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.gateway.tls import from_folder, self_signed
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.settings import RouterSettings

HELD_BODIES = 64
"""Bodies of the largest size that may be held at a time."""

NOTICE_S = 5.0
"""How long a stopping picker still answers, until gateways have heard that it goes."""

MAX_MESSAGE_BYTES = 64 * 1_048_576 + 65_536
"""Longest message of a gateway, such as a whole buffered body; a longer one fails its exchange."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # A gateway that vanished with its node is noticed, and gateways may ping as they like.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
)


class GatewayServer:
    """Listens from `start` until `stop`."""

    def __init__(
        self,
        settings: RouterSettings,
        picker: Picker,
        ledger: LoadLedger,
        metrics: RouterMetrics,
        patience_s: float = BODY_PATIENCE_S,
    ) -> None:
        self._settings = settings
        requests = OpenRequests(ledger)
        budget = HoldBudget(HELD_BODIES * settings.max_request_bytes)
        self._door = ExtProcDoor(
            GatewayPicker(picker, requests, metrics, settings.max_request_bytes),
            requests,
            budget,
            settings.max_request_bytes,
            patience_s,
            settings.tenant_header,
            settings.shedding,
        )
        self._metrics = GatewayMetrics(
            metrics.registry, lambda: self._door.open, lambda: budget.held
        )
        self.health = GatewayHealth(lambda: metrics.ready)
        shared = ("grpc.so_reuseport", int(settings.workers > 1))
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.max_connections, options=(*_OPTIONS, shared)
        )

    async def start(self) -> int:
        """Listen; return the port. Raises `OSError` if it can't be had or a file can't be read."""
        settings = self._settings
        address = _address(settings.gateway_host, settings.gateway_port)
        credentials = self._credentials()
        port: int
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"can't listen on {address}") from error
        self._server.add_generic_rpc_handlers((self._door.handlers(self._metrics),))
        await self.health.serve_on(self._server)
        await self._server.start()
        return port

    async def stop(self) -> None:
        """End without a lost request: first say so, then hand every exchange back."""
        drain_s = self._settings.gateway_drain_s
        notice_s = min(NOTICE_S, drain_s / 2)
        await self.health.leave()
        await asyncio.sleep(notice_s)
        self._door.drain()
        await self._server.stop(drain_s - notice_s)
        structlog.get_logger("gateway").info("door closed", cut=self._door.open)

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self._settings.gateway_tls == "off":
            return None
        if self._settings.gateway_tls == "self-signed":
            return self_signed(datetime.datetime.now(datetime.UTC))
        return from_folder(self._settings.gateway_tls_dir, self._settings.gateway_tls == "mutual")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
