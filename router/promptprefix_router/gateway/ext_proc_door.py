"""The gateway door: Envoy's external processing over gRPC, as the endpoint-picker protocol says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from promptprefix_router.decision import Decision
from promptprefix_router.gateway.ext_proc_codec import decode, encode
from promptprefix_router.gateway.ext_proc_events import Answer, Event
from promptprefix_router.gateway.ext_proc_exchange import Exchange, ProtocolError, Steps
from promptprefix_router.gateway.gateway_metrics import GatewayMetrics
from promptprefix_router.gateway.gateway_picker import GatewayPicker
from promptprefix_router.gateway.grpc_call import Call, Service, Status
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.shedding import NO_SHEDDING, Shedding

BODY_PATIENCE_S = 10.0
"""How long a full-duplex body is held for a client that sends it slowly."""

_Read: TypeAlias = Callable[[bytes], Event | None]


class ExtProcDoor:
    """Serves exchanges until told to drain."""

    def __init__(
        self,
        picker: GatewayPicker,
        requests: OpenRequests,
        budget: HoldBudget,
        limit: int,
        patience_s: float,
        tenant_header: str = "",
        shedding: Shedding = NO_SHEDDING,
    ) -> None:
        self._picker = picker
        self._requests = requests
        self._budget = budget
        self._limit = limit
        self._patience_s = patience_s
        self._decode: _Read = partial(decode, tenant_header=tenant_header, shedding=shedding)
        self._talks: set[_Talk] = set()
        self.draining = False

    @property
    def open(self) -> int:
        """Number of open exchanges."""
        return len(self._talks)

    def service(self, metrics: GatewayMetrics) -> Service:
        """Return the method for a gRPC server."""

        def begin(call: Call) -> _Talk:
            exchange = Exchange(self._picker, self._limit, self._budget)
            talk = _Talk(
                call, exchange, self._picker, self._decode, self._patience_s, lambda: self.draining
            )
            talk.over = lambda: self._end(talk, metrics)
            self._talks.add(talk)
            return talk

        return begin

    def drain(self) -> None:
        """End each exchange, now or as soon as its gateway can go on without it."""
        self.draining = True
        for talk in list(self._talks):
            talk.end_if_idle()

    def _end(self, talk: _Talk, metrics: GatewayMetrics) -> None:
        self._talks.discard(talk)
        if talk.address is not None:
            self._requests.end(talk.address)
        metrics.ended(talk.end)
        exchange = talk.exchange
        if exchange.served is not None and exchange.decision is not None:
            metrics.served(exchange.decision.destination, exchange.served)


class _Talk:
    """One stream of messages. ``over`` is called when it has ended, which ``end`` says how."""

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        picker: GatewayPicker,
        read: _Read,
        patience_s: float,
        draining: Callable[[], bool],
    ) -> None:
        self.exchange = exchange
        self.end = "cancelled"
        self.address: str | None = None
        self.over: Callable[[], None] = lambda: None
        self._call = call
        self._picker = picker
        self._decode = read
        self._patience_s = patience_s
        self._draining = draining
        self._timer: asyncio.TimerHandle | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._later: deque[bytes] = deque()
        """Messages that came while a decision was waited for."""
        self._heard_all = False

    def received(self, message: bytes) -> None:
        """Answer a message, after those before it."""
        if self._deciding is None:
            self._answer(message)
        else:
            self._later.append(message)

    def ended(self) -> None:
        """End once everything is answered."""
        self._heard_all = True
        self._end_if_done()

    def closed(self) -> None:
        """Release everything."""
        self.exchange.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._deciding is not None:
            self._deciding.cancel()
        self._later.clear()
        self.over()

    def end_if_idle(self) -> None:
        """End at once if the gateway waits for nothing."""
        if self._deciding is None and self.exchange.may_end:
            self._finish("drained")

    def _answer(self, message: bytes) -> None:
        try:
            event = self._decode(message)
            if event is not None:
                self._step(self.exchange.steps(event))
        except ProtocolError as error:
            self._finish("protocol-error", Status.INVALID_ARGUMENT, str(error))

    def _step(self, steps: Steps, decision: Decision | None = None) -> None:
        """Go through ``steps`` as far as nothing is to be waited for. Raises `ProtocolError`."""
        try:
            question = next(steps) if decision is None else steps.send(decision)
            while True:
                found = self._picker.consult(question)
                if not isinstance(found, Decision):
                    self._call.wait()
                    loop = asyncio.get_running_loop()
                    self._deciding = loop.create_task(self._go_on(steps, found))
                    return
                question = steps.send(found)
        except StopIteration as end:
            self._send(end.value)

    async def _go_on(self, steps: Steps, found: Awaitable[Decision]) -> None:
        """Wait for a decision, and answer what came meanwhile."""
        decision = await found
        self._deciding = None
        try:
            self._step(steps, decision)
        except ProtocolError as error:
            self._finish("protocol-error", Status.INVALID_ARGUMENT, str(error))
        while self._later and self._deciding is None:
            self._answer(self._later.popleft())
        if self._deciding is None:
            self._call.resume()
            self._end_if_done()

    def _send(self, answers: Sequence[Answer]) -> None:
        self._follow()
        for answer in answers:
            self._call.send(encode(answer))
        if self.exchange.refused:
            self._finish("refused")
        elif self._draining() and self.exchange.may_end:
            self._finish("drained")

    def _end_if_done(self) -> None:
        if self._heard_all and self._deciding is None and not self._later:
            self._finish("finished")

    def _finish(self, end: str, status: Status = Status.OK, text: str = "") -> None:
        if self._call.open and not self._call.trailers:
            self.end = end
            self._call.finish(status, text)

    def _follow(self) -> None:
        """Count a request that was just steered, and bound the time that a body is held."""
        decision = self.exchange.decision
        if self.address is None and decision is not None and decision.endpoint is not None:
            self.address = decision.endpoint.address
        if self.exchange.holding:
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._patience_s, self._hurry)
        elif self._timer is not None:
            self._timer.cancel()

    def _hurry(self) -> None:
        if self._deciding is None and self.exchange.holding:
            self._step(self.exchange.hurried())
