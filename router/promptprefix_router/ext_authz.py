"""The standalone door: Envoy's external authorization over HTTP, in terms of the picker."""

from __future__ import annotations

from functools import lru_cache

from promptprefix_router.header_names import (
    DECISION_HEADER,
    DESTINATION_HEADER,
    PREFIX_HEADER,
    REWRITE_HEADER,
)
from promptprefix_router.http_door import HttpRequest, HttpResponse
from promptprefix_router.matching import Question
from promptprefix_router.picker import Picker

PARTIAL_HEADER = "x-envoy-auth-partial-body"

_PREFIX = PREFIX_HEADER.encode()
_PARTIAL = PARTIAL_HEADER.encode()
_JSON = ("content-type", "application/json")

PERMITS = 4096
"""Answers that are kept as bytes: there are a few for each endpoint."""


class ExtAuthz:
    """Translates checks to questions, and decisions to answers."""

    def __init__(self, picker: Picker, max_request_bytes: int) -> None:
        self._picker = picker
        self._max_request_bytes = max_request_bytes
        self._permit = lru_cache(PERMITS)(_permit)

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one check: 200 with or without an endpoint, or a refusal."""
        decision = self._picker.decide(self._question(request))
        if decision.refusal is not None:
            return HttpResponse(decision.refusal.status, (_JSON,), decision.refusal.body)
        manner = "" if decision.rewriting is None else decision.rewriting.manner
        return self._permit(decision.summary, decision.destination, manner)

    def _question(self, request: HttpRequest) -> Question:
        name = request.headers.get(_PREFIX)
        # Envoy calls a body whole that it cut exactly at the limit.
        cut = len(request.body) >= self._max_request_bytes
        return Question(
            path=request.path,
            body=request.body,
            partial=cut or request.headers.get(_PARTIAL) == b"true",
            prefix_name=name.decode("latin-1") if name else None,
        )


def _permit(summary: str, destination: str, rewrite: str) -> HttpResponse:
    told = (
        (DECISION_HEADER, summary),
        (DESTINATION_HEADER, destination),
        (REWRITE_HEADER, rewrite),
    )
    return HttpResponse(200, tuple(header for header in told if header[1]))
