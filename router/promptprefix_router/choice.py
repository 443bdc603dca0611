"""Which endpoint answers a matched request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from promptprefix_router.load import LoadLedger
from promptprefix_router.matching import Match, MatchKind
from promptprefix_router.routes import Endpoint, Routes


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
    """The endpoint, if any, and why."""

    outcome: Outcome
    endpoint: Endpoint | None = None


def choose(routes: Routes, match: Match, ledger: LoadLedger) -> Choice:
    """Choose among ready endpoints serving the model: a warm one first, then by load.

    Endpoints that Envoy's health checks find broken are left out while others remain.
    """
    ready = routes.ready(match.model)
    candidates = [endpoint for endpoint in ready if ledger.healthy(endpoint.address)] or ready
    if not candidates:
        return Choice(Outcome.UNROUTED)
    warm = [endpoint for endpoint in candidates if not endpoint.warm.isdisjoint(match.digests)]
    if warm:
        outcome = Outcome.WARM
    elif match.kind in (MatchKind.HEADER, MatchKind.FINGERPRINT):
        outcome = Outcome.COLD
    else:
        outcome = Outcome.LEAST_LOADED
    best = min(warm or candidates, key=lambda endpoint: ledger.rank(endpoint.address))
    return Choice(outcome, best)
