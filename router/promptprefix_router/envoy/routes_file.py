"""The file from which Envoy takes its routes (RDS from a watched file)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from promptprefix_router.envoy.client_routes import RouteRules, route_configuration
from promptprefix_router.envoy.header_plan import HeaderRoute
from promptprefix_router.envoy.watched_file import WatchedFile, discovery_response

ROUTES_FILE = "routes.json"


class RoutesFile:
    """Writes the routes when they change."""

    def __init__(self, folder: Path, rules: RouteRules) -> None:
        self._file = WatchedFile(folder / ROUTES_FILE)
        self._rules = rules

    def create(self) -> bool:
        """Make a file without names unless there is one; return whether it was made."""
        return self._file.create(self.render(()))

    def write(self, content: bytes) -> bool:
        """Put rendered routes in the file; return whether it changed. Raises `OSError`."""
        return self._file.write(content)

    def render(self, named: Sequence[HeaderRoute]) -> bytes:
        """Return an Envoy discovery response whose routes let it resolve ``named``."""
        return discovery_response(route_configuration(named, self._rules))
