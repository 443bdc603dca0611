"""The published pool where no Envoy reads it from a file: it is only remembered."""

from __future__ import annotations

from promptprefix_router.control.routes import Routes


class PoolMemory:
    """Knows the endpoints in force; stands where an Envoy's file stands in the other door."""

    def __init__(self) -> None:
        self._addresses: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether no endpoint is in force."""
        return not self._addresses

    def publish(self, routes: Routes) -> bool:
        """Put ``routes`` in force; return whether the endpoints changed."""
        addresses = frozenset(endpoint.address for endpoint in routes.endpoints)
        changed = addresses != self._addresses
        self._addresses = addresses
        return changed
