"""The picker as a gateway needs it: every request gets an endpoint of the pool or a refusal."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from promptprefix.shapes import SHAPES
from promptprefix_router.control.routes import Endpoint
from promptprefix_router.decision import Decision, Refusal
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.matching.matcher import Question
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.rewriting.rewriter import rewritten

NO_ENDPOINT = Refusal(
    503,
    json.dumps(
        {
            "error": {
                "message": "No ready endpoint can take this request.",
                "type": "service_unavailable_error",
                "param": None,
                "code": "no_ready_endpoint",
            }
        }
    ).encode(),
)


class GatewayPicker:
    """Decides for the gateway door. ``requests`` counts what is open on each endpoint."""

    def __init__(
        self, picker: Picker, requests: OpenRequests, metrics: RouterMetrics, max_body_bytes: int
    ) -> None:
        self._picker = picker
        self._requests = requests
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    def resolves(self, name: str, tenant: str = "") -> bool:
        """Return whether the prefix ``name`` decides without the body.

        Where a salt is to be set it does not: it goes into the body.
        """
        routes = self._picker.routes
        prefixes = routes.named(name, None, tenant)
        return bool(prefixes) and not prefixes[0].salt and routes.reusable(prefixes, tenant)

    def consult(self, question: Question) -> Decision | Awaitable[Decision]:
        """Return the decision, or what gives it once the prompt's tokens are known.

        One without a refusal has an endpoint.
        """
        asked = self._asked(question)
        decision = self._picker.consult(asked)
        if isinstance(decision, Decision):
            return self._completed(asked, decision)
        return self._completed_later(asked, decision)

    def _asked(self, question: Question) -> Question:
        return Question(
            api_path(question.path),
            question.body,
            question.partial,
            question.prefix_name,
            question.tenant,
            _allowed(self._picker.routes.endpoints, question.subset),
            question.sheddable,
        )

    async def _completed_later(self, asked: Question, decision: Awaitable[Decision]) -> Decision:
        return self._completed(asked, await decision)

    def _completed(self, asked: Question, decision: Decision) -> Decision:
        if decision.refusal is not None or decision.endpoint is not None:
            return decision
        # A gateway has no choice of its own; an engine says best what it does not serve.
        ready = [
            endpoint
            for endpoint in self._picker.routes.endpoints
            if endpoint.ready and (asked.subset is None or endpoint.address in asked.subset)
        ]
        if not ready:
            return replace(decision, refusal=NO_ENDPOINT)
        return replace(decision, endpoint=self._requests.pick(ready))

    def rewritten(self, decision: Decision, body: bytes) -> bytes | None:
        """Return what a whole ``body`` becomes by a decision; None to leave it."""
        if decision.rewriting is None:
            return None
        return rewritten(decision.rewriting, body, self._max_body_bytes, self._metrics.rewrote)


def api_path(path: str) -> str:
    """Return the path of a known API that ``path`` ends with, else ``path``.

    A gateway may serve a pool under a path of its own and cut it off behind this door.
    """
    return next((known for known in SHAPES if path.endswith(known)), path)


def _allowed(endpoints: Sequence[Endpoint], subset: frozenset[str] | None) -> frozenset[str] | None:
    """Return the addresses that a gateway's hint allows; it may leave out the port."""
    if subset is None:
        return None
    return frozenset(
        endpoint.address
        for endpoint in endpoints
        if endpoint.address in subset or endpoint.host in subset
    )
