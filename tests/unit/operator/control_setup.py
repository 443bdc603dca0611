"""A control API on loopback, with callers known by their tokens."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from promptprefix.block_stream import KEY_BYTES
from promptprefix.payload import Payload
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.block_keys import BlockKeyring
from promptprefix_operator.control_api import (
    Access,
    ControlApi,
    control_application,
)
from promptprefix_operator.identity import Caller
from promptprefix_operator.matches import Matches
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import HEARING_SECONDS, Routers
from promptprefix_operator.sidecars import Sidecars

TERM = 7
NOW = datetime(2026, 11, 29, tzinfo=UTC)
SALT = "a-salt-that-nobody-may-read"
KEYRING = BlockKeyring(bytes(KEY_BYTES))
PAYLOAD = Payload(systemInstructions="You are a bot.")


class Reviewer:
    """Knows callers by their token."""

    callers = {  # noqa: RUF012
        "pod": Caller("ml", "vllm", "u0"),
        "other": Caller("elsewhere", "vllm", "u9"),
        "unbound": Caller("ml", "vllm"),
        "router": Caller("system", "router", "ru0"),
        "router-1": Caller("system", "router", "ru1"),
        "ml-router": Caller("ml", "picker", "ru2"),
        "chat-router": Caller("chat", "picker", "ru3"),
    }

    async def review(self, token: str) -> Caller | None:
        if token == "broken":
            raise ApiError(0, "down")
        return self.callers.get(token)


@dataclass
class Setup:
    publication: Publication = field(default_factory=lambda: Publication(TERM, KEYRING))
    metrics: Metrics = field(default_factory=Metrics)
    wakes: int = 0
    settling: bool = False
    seconds: float = 0.0
    known: set[str] = field(default_factory=lambda: {"ml"})
    api: ControlApi = field(init=False)
    client: TestClient = field(init=False)  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        self.sidecars = Sidecars(lambda: 0.0, 45, self._wake, lambda: NOW)
        self.routers = Routers(lambda: self.seconds, self._wake)
        self.matches = Matches(lambda: NOW, self.routers, self._wake)
        self.seconds = HEARING_SECONDS

    def _wake(self) -> None:
        self.wakes += 1

    def counted(self, result: str) -> float:
        registry: CollectorRegistry = self.metrics.registry
        name = "promptprefix_operator_sync_requests_total"
        return registry.get_sample_value(name, {"result": result}) or 0.0

    async def ask(
        self, method: str, path: str, bearer: str = "pod", body: str | None = None
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        data = None if body is None else io.BytesIO(body.encode())
        async with self.client.request(method, path, headers=headers, data=data) as answer:
            return answer.status, await answer.text()

    async def polls(self, pod: str) -> None:
        """Wait until the pod's question is held."""
        while not (found := self.sidecars.connected().get(pod)) or found.polls == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def serve(hold: float) -> AsyncIterator[Setup]:
    setup = Setup()
    setup.api = ControlApi(
        reviewer=Reviewer(),
        access=Access(["ml", "chat"], ["system/router", "ml/picker", "chat/picker"], "system"),
        sidecars=setup.sidecars,
        publication=setup.publication,
        known=lambda namespace: namespace in setup.known,
        content=lambda digest: PAYLOAD if digest == PAYLOAD.digest else None,
        salt={"salted-1": SALT}.get,
        matches=setup.matches,
        routers=setup.routers,
        metrics=setup.metrics,
        settling=lambda: setup.settling,
        hold_seconds=hold,
    )
    async with TestClient(TestServer(control_application(lambda: setup.api))) as setup.client:
        yield setup
