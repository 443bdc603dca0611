"""The standalone door: Envoy's external authorization over HTTP, in terms of the picker."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache

from promptprefix_router.decision import SALT_UNKNOWN, Decision
from promptprefix_router.doors.http_door import HttpRequest, HttpResponse
from promptprefix_router.header_names import (
    DECISION_HEADER,
    DESTINATION_HEADER,
    PREFIX_HEADER,
    REWRITE_HEADER,
)
from promptprefix_router.matching.matcher import Question
from promptprefix_router.picker import Picker
from promptprefix_router.rewriting.rewriter import UNCHANGED
from promptprefix_router.shedding import NO_SHEDDING, Shedding

PARTIAL_HEADER = "x-envoy-auth-partial-body"

_PREFIX = PREFIX_HEADER.encode()
_PARTIAL = PARTIAL_HEADER.encode()
_JSON = ("content-type", "application/json")

PERMITS = 4096
"""Answers that are kept as bytes: there are a few for each endpoint."""


class ExtAuthz:
    """Translates checks to questions, and decisions to answers.

    ``tenant_header`` names the header that says the tenant; empty without one.
    """

    def __init__(
        self,
        picker: Picker,
        max_request_bytes: int,
        tenant_header: str = "",
        shedding: Shedding = NO_SHEDDING,
    ) -> None:
        self._picker = picker
        self._max_request_bytes = max_request_bytes
        self._tenant_header = tenant_header.encode()
        self._shedding = shedding
        self._objective_header = shedding.header.encode()
        self._permit = lru_cache(PERMITS)(_permit)

    def answer(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        """Answer one check: 200 with or without an endpoint, or a refusal."""
        decision = self._picker.consult(self._question(request))
        if isinstance(decision, Decision):
            return self._answered(request, decision)
        return self._answered_later(request, decision)

    async def _answered_later(
        self, request: HttpRequest, decision: Awaitable[Decision]
    ) -> HttpResponse:
        return self._answered(request, await decision)

    def _answered(self, request: HttpRequest, decision: Decision) -> HttpResponse:
        if decision is SALT_UNKNOWN:
            # Envoy takes an error for no answer: what has no mark ends at its fence, as a 503.
            return self._permit(decision.summary, "", "")
        if decision.refusal is not None:
            told = (_JSON, (DECISION_HEADER, decision.summary), *decision.refusal.headers)
            return HttpResponse(decision.refusal.status, told, decision.refusal.body)
        return self._permit(decision.summary, decision.destination, self._mark(request, decision))

    def _mark(self, request: HttpRequest, decision: Decision) -> str:
        """Return the mark without which Envoy lets no request of a tenant pass.

        A picker that has no route table yet can't know which salt is due, and marks none.
        """
        fenced = self._tenant_header in request.headers
        if fenced and self._picker.routes.revision is None:
            return ""
        if decision.rewriting is not None:
            return decision.rewriting.manner
        return UNCHANGED if fenced else ""

    def _question(self, request: HttpRequest) -> Question:
        name = request.headers.get(_PREFIX)
        tenant = request.headers.get(self._tenant_header, b"")
        objective = request.headers.get(self._objective_header, b"")
        # Envoy calls a body whole that it cut exactly at the limit.
        cut = len(request.body) >= self._max_request_bytes
        return Question(
            path=request.path,
            body=request.body,
            partial=cut or request.headers.get(_PARTIAL) == b"true",
            prefix_name=name.decode("latin-1") if name else None,
            tenant=tenant.decode("latin-1"),
            sheddable=self._shedding.covers(objective.decode("latin-1")),
        )


def _permit(summary: str, destination: str, rewrite: str) -> HttpResponse:
    told = (
        (DECISION_HEADER, summary),
        (DESTINATION_HEADER, destination),
        (REWRITE_HEADER, rewrite),
    )
    return HttpResponse(200, tuple(header for header in told if header[1]))
