"""The file from which Envoy takes its endpoints (EDS from a watched file)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from promptprefix_router.control.routes import Endpoint
from promptprefix_router.envoy.watched_file import WatchedFile, discovery_response

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

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the groups of each address that the file names. Raises `OSError`."""
        content = self._file.read()
        try:
            response = _DECODER.decode(content) if content is not None else _Response()
        except msgspec.MsgspecError:
            return {}
        return {
            each.endpoint.address.socket_address.written: each.metadata.filter_metadata.lb.group
            for assignment in response.resources
            for locality in assignment.endpoints
            for each in locality.lb_endpoints
        }

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


class _Socket(msgspec.Struct):
    address: str = ""
    port_value: int = 0

    @property
    def written(self) -> str:
        """The address as `Endpoint` has it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port_value}"


class _Address(msgspec.Struct):
    socket_address: _Socket = msgspec.field(default_factory=_Socket)


class _Place(msgspec.Struct):
    address: _Address = msgspec.field(default_factory=_Address)


class _Groups(msgspec.Struct):
    group: tuple[str, ...] = ()


class _Filters(msgspec.Struct):
    lb: _Groups = msgspec.field(name="envoy.lb", default_factory=_Groups)


class _Metadata(msgspec.Struct):
    filter_metadata: _Filters = msgspec.field(default_factory=_Filters)


class _Known(msgspec.Struct):
    endpoint: _Place
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Locality(msgspec.Struct):
    lb_endpoints: tuple[_Known, ...] = ()


class _Assignment(msgspec.Struct):
    endpoints: tuple[_Locality, ...] = ()


class _Response(msgspec.Struct):
    resources: tuple[_Assignment, ...] = ()


_DECODER = msgspec.json.Decoder(_Response)


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
