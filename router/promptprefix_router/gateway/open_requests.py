"""How many requests are open on each endpoint, for a picker without an Envoy of its own."""

from __future__ import annotations

from collections.abc import Sequence

from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.control.routes import Endpoint


class OpenRequests:
    """Counts a request from its pick until its gateway has ended the exchange.

    That is at the response's end, or at its headers if the gateway shows no more of it. The picks
    of the ledger are the counts: no reading ever takes their place.
    """

    def __init__(self, ledger: LoadLedger) -> None:
        self._ledger = ledger

    def pick(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        """Return the least loaded of ``endpoints``, at least one, and count a request there."""
        best = min(endpoints, key=lambda endpoint: self._ledger.load(endpoint.address))
        self._ledger.pick(best.address)
        return best

    def end(self, address: str) -> None:
        """Count a request that was picked for ``address`` no more."""
        self._ledger.end(address)
