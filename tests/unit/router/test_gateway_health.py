"""Health of the gateway door: who asks once, and who watches."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from promptprefix_router.gateway.grpc_call import Call, Handler, Status
from promptprefix_router.gateway.health import EXTERNAL_PROCESSOR, LIVENESS, GatewayHealth

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class OverError(Exception):
    """The time of a test is over."""


class Asker:
    """The far end of a call."""

    def __init__(self, health: GatewayHealth, method: str) -> None:
        self.told: list[int] = []
        self.status: Status | None = None
        call: Call = self  # type: ignore[assignment]
        self.handler: Handler = health.services[f"/grpc.health.v1.Health/{method}"](call)

    def send(self, message: bytes) -> None:
        """Keep a state."""
        self.told.append(health_pb2.HealthCheckResponse.FromString(message).status)

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """Keep the end."""
        self.status = status

    def ask(self, name: str) -> Asker:
        """Ask for a service."""
        question = health_pb2.HealthCheckRequest(service=name)
        self.handler.received(question.SerializeToString())
        self.handler.ended()
        return self


@pytest.fixture
def ready() -> list[bool]:
    return [False]


@pytest.fixture
def health(ready: list[bool]) -> GatewayHealth:
    async def sleep(_: float) -> None:
        turns.append(1)
        if len(turns) % 2 == 0:
            raise OverError

    turns: list[int] = []
    return GatewayHealth(lambda: ready[0], sleep)


async def look(health: GatewayHealth) -> None:
    """Let it look once whether the picker is ready."""
    with pytest.raises(OverError):
        await health.run()


async def test_who_asks_once(health: GatewayHealth, ready: list[bool]) -> None:
    assert Asker(health, "Check").ask(LIVENESS).told == [SERVING]
    asked = Asker(health, "Check").ask(EXTERNAL_PROCESSOR)
    assert (asked.told, asked.status) == ([NOT_SERVING], Status.OK)
    ready[0] = True
    await look(health)
    assert Asker(health, "Check").ask("").told == [SERVING]
    asked = Asker(health, "Check").ask("other")
    assert (asked.told, asked.status) == ([], Status.NOT_FOUND)


async def test_who_watches_hears_of_each_change_once(
    health: GatewayHealth, ready: list[bool]
) -> None:
    watcher = Asker(health, "Watch").ask(EXTERNAL_PROCESSOR)
    other = Asker(health, "Watch").ask("other")
    await look(health)
    ready[0] = True
    await look(health)
    await look(health)
    assert (watcher.told, watcher.status) == ([NOT_SERVING, SERVING], None)
    assert other.told == [UNKNOWN]
    health.leave()
    assert watcher.told[-1] == NOT_SERVING
    await look(health)
    assert watcher.told[-1] == NOT_SERVING, "who leaves does not come back"
    watcher.handler.closed()
    assert len(watcher.told) == 3


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_questions_that_are_none(health: GatewayHealth, method: str) -> None:
    asked = Asker(health, method)
    asked.handler.received(b"\xff")
    assert asked.status is Status.INVALID_ARGUMENT
    silent = Asker(health, method)
    silent.handler.ended()
    assert silent.status is Status.INVALID_ARGUMENT
