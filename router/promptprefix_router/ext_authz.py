"""The standalone door: Envoy's external authorization over HTTP, in terms of the picker."""

from __future__ import annotations

from promptprefix_router.decision import Decision
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


class ExtAuthz:
    """Translates checks to questions, and decisions to answers."""

    def __init__(self, picker: Picker, max_request_bytes: int) -> None:
        self._picker = picker
        self._max_request_bytes = max_request_bytes

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one check: 200 with or without an endpoint, or a refusal."""
        return _response(self._picker.decide(self._question(request)))

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


def _response(decision: Decision) -> HttpResponse:
    if decision.refusal is not None:
        return HttpResponse(decision.refusal.status, (_JSON,), decision.refusal.body)
    headers = [(DECISION_HEADER, decision.summary)]
    if decision.endpoint is not None:
        headers.append((DESTINATION_HEADER, decision.destination))
    if decision.rewriting is not None:
        headers.append((REWRITE_HEADER, decision.rewriting.manner))
    return HttpResponse(200, tuple(headers))
