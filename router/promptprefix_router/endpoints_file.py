"""The file from which Envoy takes its endpoints (EDS from a watched folder)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from promptprefix_router.routes import Endpoint

ENGINES_CLUSTER = "engines"
ENDPOINTS_FILE = "endpoints.json"

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EndpointsFile:
    """Writes the endpoints when they change, so that Envoy never reads half a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ENDPOINTS_FILE

    @property
    def empty(self) -> bool:
        """Whether the file names no endpoint, or does not exist."""
        return self._read() in (None, render(()))

    def create(self) -> bool:
        """Make an empty file unless there is one; return whether it was made."""
        return self._read() is None and self.write(())

    def write(self, endpoints: Iterable[Endpoint]) -> bool:
        """Put ``endpoints`` in the file; return whether it changed. Raises `OSError`."""
        content = render(endpoints)
        if self._read() == content:
            return False
        replace_file(self._path, content)
        return True

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None


def render(endpoints: Iterable[Endpoint]) -> bytes:
    """Return an Envoy discovery response with ``endpoints``."""
    assignment = {
        "@type": _ASSIGNMENT,
        "cluster_name": ENGINES_CLUSTER,
        "endpoints": [{"lb_endpoints": [_lb_endpoint(endpoint) for endpoint in endpoints]}],
    }
    return json.dumps({"resources": [assignment]}, indent=1).encode() + b"\n"


def _lb_endpoint(endpoint: Endpoint) -> dict[str, object]:
    address = {"socket_address": {"address": endpoint.host, "port_value": endpoint.port}}
    return {
        "endpoint": {"address": address},
        # HEALTHY still means: if Envoy's own health checks succeed.
        "health_status": "HEALTHY" if endpoint.ready else "UNHEALTHY",
    }


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path`` and rename it into place. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
