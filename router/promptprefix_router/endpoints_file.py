"""The file from which Envoy takes its endpoints (EDS from a watched file)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from promptprefix_router.routes import Endpoint
from promptprefix_router.watched_file import WatchedFile, discovery_response

ENGINES_CLUSTER = "engines"
ENDPOINTS_FILE = "endpoints.json"
GROUP_KEY = "group"
"""Where Envoy finds the groups of an endpoint, in its metadata for load balancing."""

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EndpointsFile:
    """Writes the endpoints when they or their groups change."""

    def __init__(self, folder: Path) -> None:
        self._file = WatchedFile(folder / ENDPOINTS_FILE)

    @property
    def empty(self) -> bool:
        """Whether the file names no endpoint, or does not exist."""
        return self._file.read() in (None, render(()))

    def create(self) -> bool:
        """Make an empty file unless there is one; return whether it was made."""
        return self._file.create(render(()))

    def write(
        self,
        endpoints: Iterable[Endpoint],
        groups_of: Callable[[Endpoint], tuple[str, ...]] = lambda _: (),
    ) -> bool:
        """Put ``endpoints`` in the file; return whether it changed. Raises `OSError`."""
        return self._file.write(render(endpoints, groups_of))


def render(
    endpoints: Iterable[Endpoint],
    groups_of: Callable[[Endpoint], tuple[str, ...]] = lambda _: (),
) -> bytes:
    """Return an Envoy discovery response with ``endpoints``."""
    found = [_lb_endpoint(endpoint, groups_of(endpoint)) for endpoint in endpoints]
    assignment = {
        "@type": _ASSIGNMENT,
        "cluster_name": ENGINES_CLUSTER,
        "endpoints": [{"lb_endpoints": found}],
    }
    return discovery_response(assignment)


def _lb_endpoint(endpoint: Endpoint, groups: tuple[str, ...]) -> dict[str, object]:
    address = {"socket_address": {"address": endpoint.host, "port_value": endpoint.port}}
    metadata = {"metadata": {"filter_metadata": {"envoy.lb": {GROUP_KEY: groups}}}}
    return {
        "endpoint": {"address": address},
        # HEALTHY still means: if Envoy's own health checks succeed.
        "health_status": "HEALTHY" if endpoint.ready else "UNHEALTHY",
        **(metadata if groups else {}),
    }
