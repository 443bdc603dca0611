"""A route table as the operator gives it."""

from __future__ import annotations

from promptprefix.wire import Revision, RouteEndpoint, RouteTable

ENDPOINT = RouteEndpoint(
    pod_uid="u", pod="p", namespace="ml", address="10.0.0.1", port=8000, models=("m",), ready=True
)


def route_table(number: int, term: int = 1) -> RouteTable:
    """Return a table with one endpoint."""
    revision = Revision(term=term, number=number)
    return RouteTable(revision=revision, prefixes=(), endpoints=(ENDPOINT,))
