"""Answers Envoy's question for each request: go ahead, and to which endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable

from promptprefix.pin_command import XARG
from promptprefix_router.choice import Choice, Outcome, choose
from promptprefix_router.command_guard import carries_command
from promptprefix_router.http_door import HttpRequest, HttpResponse
from promptprefix_router.load import LoadLedger
from promptprefix_router.match_tally import MatchTally
from promptprefix_router.matching import Match, Matcher, Question
from promptprefix_router.metrics import REFUSED, RouterMetrics
from promptprefix_router.routes import Routes

DESTINATION_HEADER = "x-gateway-destination-endpoint"
PREFIX_HEADER = "x-promptprefix"
DECISION_HEADER = "x-promptprefix-decision"
PARTIAL_HEADER = "x-envoy-auth-partial-body"

_REFUSAL = HttpResponse(
    403,
    (("content-type", "application/json"),),
    json.dumps(
        {
            "error": {
                "message": f"Engine commands are not accepted from clients: remove {XARG!r} from "
                "vllm_xargs (and from kv_transfer_params, ec_transfer_params, extra_args).",
                "type": "invalid_request_error",
                "param": f"vllm_xargs.{XARG}",
                "code": "engine_command_refused",
            }
        }
    ).encode(),
)


class Picker:
    """Decides in memory and at once; never answers an error of its own making."""

    def __init__(
        self,
        matcher: Matcher,
        ledger: LoadLedger,
        tally: MatchTally,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        max_request_bytes: int,
    ) -> None:
        self._matcher = matcher
        self._ledger = ledger
        self._tally = tally
        self._metrics = metrics
        self._clock = clock
        self._max_request_bytes = max_request_bytes
        self._routes = Routes()

    @property
    def routes(self) -> Routes:
        """The route table in force."""
        return self._routes

    def use(self, routes: Routes) -> None:
        """Decide by ``routes`` from now on."""
        self._routes = routes
        self._ledger.retain(endpoint.address for endpoint in routes.endpoints)
        self._tally.retain(routes.ids)

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one check: 200 with or without an endpoint, or 403 for an engine command."""
        started = self._clock()
        question = self._question(request)
        if carries_command(question.body):
            self._metrics.decided(REFUSED, Outcome.REFUSED, self._clock() - started)
            return _REFUSAL
        match = self._matcher.match(question, self._routes)
        self._tally.note(match.ids)
        choice = choose(self._routes, match, self._ledger)
        if choice.endpoint is not None:
            self._ledger.pick(choice.endpoint.address)
        self._metrics.decided(match.kind, choice.outcome, self._clock() - started)
        return _permit(match, choice)

    def _question(self, request: HttpRequest) -> Question:
        name = request.headers.get(PREFIX_HEADER.encode())
        # Envoy calls a body whole that it cut exactly at the limit.
        cut = len(request.body) >= self._max_request_bytes
        return Question(
            path=request.path,
            body=request.body,
            partial=cut or request.headers.get(PARTIAL_HEADER.encode()) == b"true",
            prefix_name=name.decode("latin-1") if name else None,
        )


def _permit(match: Match, choice: Choice) -> HttpResponse:
    headers = [(DECISION_HEADER, f"{choice.outcome};match={match.kind}")]
    if choice.endpoint is not None:
        headers.append((DESTINATION_HEADER, choice.endpoint.address))
    return HttpResponse(200, tuple(headers))
