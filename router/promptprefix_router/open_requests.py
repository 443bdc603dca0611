"""How many requests are open on each endpoint, for a picker without an Envoy of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from promptprefix_router.load import LoadLedger, LoadReading
from promptprefix_router.routes import Endpoint


class OpenRequests:
    """Counts a request from its decision until its gateway has ended the exchange.

    That is at the response's end, or at its headers if the gateway shows no more of it. The counts
    are the ledger's reading. Bounded by the exchanges that are open.
    """

    def __init__(self, ledger: LoadLedger) -> None:
        self._ledger = ledger
        self._open: Counter[str] = Counter()

    def begin(self, address: str) -> None:
        """Count a request that goes to ``address``."""
        self._open[address] += 1
        self._tell()

    def end(self, address: str) -> None:
        """Count it no more."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def pick(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        """Return the least loaded of ``endpoints``, at least one."""
        best = min(endpoints, key=lambda endpoint: self._ledger.rank(endpoint.address))
        self._ledger.pick(best.address)
        return best

    def _tell(self) -> None:
        # The picker has counted the pick itself; here it becomes part of the reading.
        self._ledger.begin_reading()
        self._ledger.finish_reading(LoadReading(self._open))
