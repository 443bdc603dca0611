"""The endpoint-picker protocol 1.0 for one HTTP exchange, without I/O.

The gateway says when it waits: with a buffered body the headers are answered first and the
endpoint is told with the body; with a full-duplex body nothing is answered until enough of the
body was seen, then everything that was held is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from typing import Protocol, TypeAlias

from promptprefix_router.decision import Decision
from promptprefix_router.gateway.ext_proc_events import (
    FULL_DUPLEX,
    Answer,
    BodyMode,
    BodyModes,
    Event,
    Refused,
    RequestBody,
    RequestBodyAnswer,
    RequestHead,
    RequestHeadAnswer,
    RequestPiece,
    RequestTrailers,
    RequestTrailersAnswer,
    ResponseBody,
    ResponseBodyAnswer,
    ResponseHead,
    ResponseHeadAnswer,
    ResponsePiece,
    ResponseTrailersAnswer,
    Steering,
)
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.matching.matcher import Question

PIECE_BYTES = 62_000
"""Longest piece of a body that is given back: some gateways take no more than 64 KiB at once."""

_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


Steps: TypeAlias = Generator[Question, Decision, Sequence[Answer]]
"""Gives the question that is to be decided, if any, takes the decision, and returns answers.

A decision without a refusal has an endpoint.
"""


class ProtocolError(ValueError):
    """The gateway said something out of turn."""


class Resolver(Protocol):
    """Who knows what the bodies are for; who decides is asked by `Steps`."""

    def resolves(self, name: str, tenant: str) -> bool:
        """Return whether the prefix ``name`` decides without the body."""

    def rewritten(self, decision: Decision, body: bytes) -> bytes | None:
        """Return what a whole ``body`` becomes by a decision; None to leave it."""


class _Phase(Enum):
    START = auto()
    HOLDING = auto()
    """Full duplex: pieces are held, nothing is answered."""
    WAITING = auto()
    """Buffered: the headers are answered, the body decides."""
    DECIDING = auto()
    STEERED = auto()
    REFUSED = auto()


class Exchange:
    """One request and its response. Of a body it holds at most ``limit`` bytes and one piece more.

    `close` must be called at the end.
    """

    def __init__(self, resolver: Resolver, limit: int, budget: HoldBudget) -> None:
        self._resolver = resolver
        self._limit = limit
        self._budget = budget
        self._phase = _Phase.START
        self._head = RequestHead()
        self._modes = FULL_DUPLEX
        self._held = bytearray()
        self._request_ended = False
        self.decision: Decision | None = None
        self.served: str | None = None

    @property
    def holding(self) -> bool:
        """Whether a body is held that the client has not ended."""
        return self._phase is _Phase.HOLDING

    @property
    def refused(self) -> bool:
        """Whether the exchange is over."""
        return self._phase is _Phase.REFUSED

    @property
    def may_end(self) -> bool:
        """Whether the gateway can finish without us: it waits for no answer and no bytes."""
        echoes_request = self._modes.request is _FULL_DUPLEX and not self._request_ended
        echoes_response = self._modes.response is _FULL_DUPLEX
        return self._phase is _Phase.STEERED and not (echoes_request or echoes_response)

    def close(self) -> None:
        """Let go of what is held."""
        self._budget.give(len(self._held))
        self._held.clear()

    def steps(self, event: Event) -> Steps:
        """Give the question of ``event``, if any, then its answers in order.

        Raises `ProtocolError`.
        """
        if isinstance(event, RequestHead):
            return (yield from self._on_request_head(event))
        if self._phase is _Phase.START:
            raise ProtocolError("a request begins with its headers")
        if self.refused:
            return ()
        if isinstance(event, RequestBody):
            return (yield from self._on_request_body(event))
        if isinstance(event, RequestTrailers):
            return (yield from self._on_request_trailers())
        if isinstance(event, ResponseHead):
            return self._on_response_head(event)
        if isinstance(event, ResponseBody):
            return self._on_response_body(event)
        return (ResponseTrailersAnswer(),)

    def hurried(self) -> Steps:
        """Decide by what is held: the client takes too long. Only while a body is `holding`."""
        return self._release(b"", end_of_stream=False, partial=True)

    def _on_request_head(self, head: RequestHead) -> Steps:
        if self._phase is not _Phase.START:
            raise ProtocolError("headers of a request came twice")
        self._head = head
        self._modes = modes = head.modes or FULL_DUPLEX
        self._request_ended = head.end_of_stream
        named = head.prefix_name is not None and self._resolver.resolves(
            head.prefix_name, head.tenant
        )
        if head.end_of_stream or named or modes.request not in (*_BUFFERED, _FULL_DUPLEX):
            partial = not head.end_of_stream
            return ((yield from self._steer(b"", partial, self._answer_head)),)
        if modes.request in _BUFFERED:
            self._phase = _Phase.WAITING
            return (self._answer_head(None),)
        self._phase = _Phase.HOLDING
        return ()

    def _on_request_body(self, event: RequestBody) -> Steps:
        if self._request_ended and self._modes.request is _FULL_DUPLEX:
            # Envoy from 1.35 may show the end of a long body twice (its issue 46237).
            return ()
        self._request_ended = event.end_of_stream
        if self._phase is _Phase.HOLDING:
            return (yield from self._hold(event))
        if self._phase is _Phase.WAITING:
            # With trailers behind it a whole buffered body has no end of stream either.
            whole = event.end_of_stream or self._modes.request is BodyMode.BUFFERED
            partial = not whole or len(event.body) > self._limit
            answer = yield from self._steer(
                event.body[: self._limit],
                partial,
                lambda steering: RequestBodyAnswer(
                    steering,
                    None if partial else self._rewritten(event.body),
                    self._head.has_length,
                ),
            )
            return (answer,)
        if self._modes.request is _FULL_DUPLEX:
            return _request_pieces(event.body, event.end_of_stream)
        return (RequestBodyAnswer(),)

    def _on_request_trailers(self) -> Steps:
        if self._phase is _Phase.WAITING:
            raise ProtocolError("trailers before the body that was waited for")
        self._request_ended = True
        released: Sequence[Answer] = ()
        if self.holding:
            released = yield from self._release(b"", end_of_stream=False, partial=False)
        return released if self.refused else (*released, RequestTrailersAnswer())

    def _on_response_head(self, event: ResponseHead) -> Sequence[Answer]:
        if self._phase is not _Phase.STEERED:
            # The gateway answers by itself: a body too large for it, or a client too slow.
            self.close()
            self._phase = _Phase.STEERED
        self.served = event.served
        return (ResponseHeadAnswer(self.decision.summary if self.decision else None),)

    def _on_response_body(self, event: ResponseBody) -> Sequence[Answer]:
        if self._modes.response is not _FULL_DUPLEX:
            return (ResponseBodyAnswer(),)
        parts = _cut(event.body, event.end_of_stream)
        return tuple(ResponsePiece(body, last) for body, last in parts)

    def _hold(self, event: RequestBody) -> Steps:
        size = len(event.body)
        fits = len(self._held) + size <= self._limit
        if event.end_of_stream:
            return (yield from self._release(event.body, end_of_stream=True, partial=not fits))
        if not fits or not self._budget.take(size):
            return (yield from self._release(event.body, end_of_stream=False, partial=True))
        self._held += event.body
        return ()

    def _release(self, more: bytes, *, end_of_stream: bool, partial: bool) -> Steps:
        body = bytes(self._held) + more if self._held else more
        first = yield from self._steer(body[: self._limit], partial, self._answer_head)
        self.close()
        if self.refused:
            return (first,)
        changed = None if partial else self._rewritten(body)
        return (first, *_request_pieces(changed or body, end_of_stream))

    def _steer(
        self, body: bytes, partial: bool, answer: Callable[[Steering], Answer]
    ) -> Generator[Question, Decision, Answer]:
        """Have it decided, and put the decision in ``answer`` unless it is a refusal."""
        head = self._head
        question = Question(
            head.path, body, partial, head.prefix_name, head.tenant, head.subset, head.sheddable
        )
        self._phase = _Phase.DECIDING
        self.decision = decision = yield question
        if decision.refusal is not None:
            self._phase = _Phase.REFUSED
            refusal = decision.refusal
            return Refused(refusal.status, refusal.body, decision.summary, refusal.headers)
        self._phase = _Phase.STEERED
        return answer(Steering(decision.destination, head.forged))

    def _rewritten(self, body: bytes) -> bytes | None:
        return self._resolver.rewritten(self.decision, body) if self.decision is not None else None

    def _answer_head(self, steering: Steering | None) -> RequestHeadAnswer:
        """Answer the headers, and ask to be spared what the rest does not need.

        A full-duplex body is on its way already and must be given back.
        """
        modes = self._head.modes
        if modes is None or modes.request is _FULL_DUPLEX:
            return RequestHeadAnswer(steering)
        request = modes.request if steering is None else BodyMode.NONE
        wanted = BodyModes(request, BodyMode.NONE)
        return RequestHeadAnswer(steering, None if wanted == modes else wanted)


def _request_pieces(body: bytes, end_of_stream: bool) -> Sequence[Answer]:
    return tuple(RequestPiece(part, last) for part, last in _cut(body, end_of_stream))


def _cut(body: bytes, end_of_stream: bool) -> Sequence[tuple[bytes, bool]]:
    """Return ``body`` in parts, and with each whether it is the last; an end may come alone."""
    if len(body) <= PIECE_BYTES:
        return ((body, end_of_stream),) if body or end_of_stream else ()
    return [
        (body[start : start + PIECE_BYTES], end_of_stream and start + PIECE_BYTES >= len(body))
        for start in range(0, len(body), PIECE_BYTES)
    ]
