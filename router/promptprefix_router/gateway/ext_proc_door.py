"""The gateway door: Envoy's external processing over gRPC, as the endpoint-picker protocol says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from promptprefix_router.decision import Decision
from promptprefix_router.gateway.ext_proc_codec import decode, encode
from promptprefix_router.gateway.ext_proc_events import Answer, Event
from promptprefix_router.gateway.ext_proc_exchange import Exchange, ProtocolError, Steps
from promptprefix_router.gateway.gateway_metrics import GatewayMetrics
from promptprefix_router.gateway.gateway_picker import GatewayPicker
from promptprefix_router.gateway.health import EXTERNAL_PROCESSOR
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.shedding import NO_SHEDDING, Shedding

BODY_PATIENCE_S = 10.0
"""How long a full-duplex body is held for a client that sends it slowly."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class ExtProcDoor:
    """Serves exchanges, each in a task of gRPC's, until told to drain."""

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
        self._decode = partial(decode, tenant_header=tenant_header, shedding=shedding)
        self._talks: set[_Talk] = set()
        self._draining = False

    @property
    def open(self) -> int:
        """Number of open exchanges."""
        return len(self._talks)

    def handlers(self, metrics: GatewayMetrics) -> grpc.GenericRpcHandler:
        """Return the service for a gRPC server; messages stay bytes, `decode` reads them."""

        async def process(_requests: object, context: _Context) -> None:
            await self._process(context, metrics)

        return grpc.method_handlers_generic_handler(
            EXTERNAL_PROCESSOR, {"Process": grpc.stream_stream_rpc_method_handler(process)}
        )

    def drain(self) -> None:
        """End each exchange, now or as soon as its gateway can go on without it."""
        self._draining = True
        for talk in self._talks:
            talk.end_if_idle()

    async def _process(self, context: _Context, metrics: GatewayMetrics) -> None:
        exchange = Exchange(self._picker, self._limit, self._budget)
        talk = _Talk(
            exchange, self._picker, context, self._requests, self._patience_s, self._decode
        )
        self._talks.add(talk)
        end = "cancelled"
        try:
            end = await talk.run(lambda: self._draining)
        except ProtocolError as error:
            end = "protocol-error"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._talks.discard(talk)
            talk.close()
            metrics.ended(end)
            if exchange.served is not None and exchange.decision is not None:
                metrics.served(exchange.decision.destination, exchange.served)


class _Talk:
    """One stream of messages. Ends by itself; `close` releases what it holds."""

    def __init__(
        self,
        exchange: Exchange,
        picker: GatewayPicker,
        context: _Context,
        requests: OpenRequests,
        patience_s: float,
        read: Callable[[bytes], Event | None],
    ) -> None:
        self._exchange = exchange
        self._picker = picker
        self._context = context
        self._requests = requests
        self._patience_s = patience_s
        self._decode = read
        self._task = asyncio.current_task()
        self._reading = False
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._hurried: asyncio.Task[None] | None = None
        self._address: str | None = None

    async def run(self, draining: Callable[[], bool]) -> str:
        """Answer until the exchange is over; return how it ended. Raises `ProtocolError`."""
        while True:
            raw = await self._read()
            if raw is None:
                return "drained"
            if raw is grpc.aio.EOF:
                return "finished"
            event = self._decode(raw)
            if event is None:
                continue
            if self._hurried is not None:
                # What was held goes first.
                await self._hurried
                self._hurried = None
            await self._send(await self._answers(self._exchange.steps(event)))
            if self._exchange.refused:
                return "refused"
            if draining() and self._exchange.may_end:
                return "drained"

    def end_if_idle(self) -> None:
        """End at once if the gateway waits for nothing."""
        if self._reading and self._exchange.may_end and self._task is not None:
            self._ended = True
            self._task.cancel()

    def close(self) -> None:
        """Release everything."""
        self._exchange.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._hurried is not None:
            self._hurried.cancel()
        if self._address is not None:
            self._requests.end(self._address)

    async def _answers(self, steps: Steps) -> Sequence[Answer]:
        try:
            question = next(steps)
            while True:
                decision = self._picker.consult(question)
                if not isinstance(decision, Decision):
                    decision = await decision
                question = steps.send(decision)
        except StopIteration as end:
            self._follow()
            answers: Sequence[Answer] = end.value
            return answers

    async def _read(self) -> Any:
        """Return the next message, `grpc.aio.EOF`, or None if the talk was ended from here."""
        self._reading = True
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if not self._ended or self._task is None:
                raise
            self._task.uncancel()
            return None
        finally:
            self._reading = False

    def _follow(self) -> None:
        """Count a request that was just steered, and bound the time that a body is held."""
        decision = self._exchange.decision
        if self._address is None and decision is not None and decision.endpoint is not None:
            self._address = decision.endpoint.address
        if self._exchange.holding:
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._patience_s, self._hurry)
        elif self._timer is not None:
            self._timer.cancel()

    def _hurry(self) -> None:
        # What comes meanwhile is read after the task, which begins before anything else is fed.
        self._hurried = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        if self._exchange.holding:
            await self._send(await self._answers(self._exchange.hurried()))

    async def _send(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            await self._context.write(encode(answer))
