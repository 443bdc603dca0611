"""Which endpoint answers a matched request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from promptprefix_router.load import LoadLedger
from promptprefix_router.matching import Match, MatchKind, Question
from promptprefix_router.routes import Endpoint, Routes

_WITHOUT_PREFIX = (MatchKind.UNDECLARED, MatchKind.PARTIAL, MatchKind.MALFORMED)


class Outcome(StrEnum):
    """Why an endpoint was chosen; the same words stand in metrics and in the response header."""

    WARM = "warm"
    """A declared prefix, and an endpoint that holds it warm."""
    COLD = "cold"
    """A declared prefix that no ready endpoint holds warm; the least loaded one."""
    LEAST_LOADED = "least-loaded"
    """No declared prefix; the least loaded endpoint."""
    UNROUTED = "unrouted"
    """No ready endpoint is known to serve the model: Envoy chooses by itself."""
    REFUSED = "refused"
    """The body holds an engine command."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The endpoint, if any, why, and the next best ones in order."""

    outcome: Outcome
    endpoint: Endpoint | None = None
    fallbacks: tuple[Endpoint, ...] = ()


class Chooser:
    """Chooses among ready endpoints serving the model: a warm one first, then by load.

    Endpoints that Envoy's health checks find broken are left out while others remain.
    """

    def __init__(self, ledger: LoadLedger) -> None:
        self._ledger = ledger

    def retain(self, routes: Routes) -> None:
        """Forget every endpoint that is not in ``routes``."""
        self._ledger.retain(endpoint.address for endpoint in routes.endpoints)

    def choose(self, routes: Routes, question: Question, match: Match) -> Choice:
        """Choose for a request, and count it as load of the chosen endpoint."""
        candidates = self._candidates(routes, question, match)
        if not candidates:
            return Choice(Outcome.UNROUTED)
        warm = [endpoint for endpoint in candidates if not endpoint.warm.isdisjoint(match.digests)]
        if warm:
            outcome = Outcome.WARM
        elif match.kind not in _WITHOUT_PREFIX:
            outcome = Outcome.COLD
        else:
            outcome = Outcome.LEAST_LOADED
        best = min(warm or candidates, key=lambda endpoint: self._ledger.rank(endpoint.address))
        self._ledger.pick(best.address)
        return Choice(outcome, best)

    def _candidates(self, routes: Routes, question: Question, match: Match) -> Sequence[Endpoint]:
        ready: Sequence[Endpoint] = routes.ready(match.model)
        if question.subset is not None:
            ready = [endpoint for endpoint in ready if endpoint.address in question.subset]
        return [endpoint for endpoint in ready if self._ledger.healthy(endpoint.address)] or ready
