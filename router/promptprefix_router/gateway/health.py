"""gRPC health of the gateway door: the names that the endpoint-picker protocol lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from promptprefix_router.gateway.grpc_call import Call, Service, Status

LIVENESS = "liveness"
READINESS = "readiness"
EXTERNAL_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"

CHECK_INTERVAL_S = 0.5

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class GatewayHealth:
    """Alive from the start; ready once the picker has a route table, and until it stops."""

    def __init__(
        self,
        ready: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ready = ready
        self._sleep = sleep
        self._left = False
        self._states: dict[str, int] = {LIVENESS: _SERVING}
        self._watchers: dict[_Asked, int] = {}
        """Who watches, and what it was told last."""
        self._tell()

    @property
    def services(self) -> Mapping[str, Service]:
        """The methods of the health service by their path."""
        return {
            "/grpc.health.v1.Health/Check": lambda call: _Asked(call, self._answer),
            "/grpc.health.v1.Health/Watch": lambda call: _Asked(call, self._watch, self._forget),
        }

    async def run(self) -> None:
        """Follow the picker's state for ever."""
        while True:
            await self._sleep(CHECK_INTERVAL_S)
            self._tell()

    def leave(self) -> None:
        """Say to whoever asks that nothing is served here any more."""
        self._left = True
        self._tell()

    def _tell(self) -> None:
        if self._left:
            self._states = dict.fromkeys(self._states, _NOT_SERVING)
        else:
            status = _SERVING if self._ready() else _NOT_SERVING
            self._states |= dict.fromkeys(("", READINESS, EXTERNAL_PROCESSOR), status)
        for watcher, told in list(self._watchers.items()):
            status = self._states.get(watcher.name, _UNKNOWN)
            if status != told:
                self._watchers[watcher] = status
                watcher.tell(status)

    def _answer(self, asked: _Asked) -> None:
        status = self._states.get(asked.name)
        if status is None:
            asked.call.finish(Status.NOT_FOUND, "no such service")
            return
        asked.tell(status)
        asked.call.finish()

    def _watch(self, asked: _Asked) -> None:
        status = self._watchers[asked] = self._states.get(asked.name, _UNKNOWN)
        asked.tell(status)

    def _forget(self, asked: _Asked) -> None:
        self._watchers.pop(asked, None)


class _Asked:
    """A question for the state of ``name``."""

    def __init__(
        self,
        call: Call,
        answer: Callable[[_Asked], None],
        forget: Callable[[_Asked], None] = lambda _: None,
    ) -> None:
        self.call = call
        self.name = ""
        self._answer = answer
        self._forget = forget
        self._asked = False

    def tell(self, status: int) -> None:
        """Send a state."""
        message = health_pb2.HealthCheckResponse(status=status)
        self.call.send(message.SerializeToString())

    def received(self, message: bytes) -> None:
        """Answer the first message; there is to be no other."""
        if self._asked:
            return
        self._asked = True
        try:
            self.name = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            self.call.finish(Status.INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        self._answer(self)

    def ended(self) -> None:
        """End what asks nothing."""
        if not self._asked:
            self.call.finish(Status.INVALID_ARGUMENT, "no question")

    def closed(self) -> None:
        """Tell nobody any more."""
        self._forget(self)
