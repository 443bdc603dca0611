"""Envoy's bootstrap: one static file; only the endpoints change while it runs."""

from __future__ import annotations

import json
from pathlib import Path

from promptprefix_router.endpoints_file import EndpointsFile, replace_file
from promptprefix_router.envoy_clusters import EnvoyConfig, clusters
from promptprefix_router.envoy_listeners import client_listener, stats_listener
from promptprefix_router.settings import RouterSettings

BOOTSTRAP_FILE = "bootstrap.json"


def bootstrap(settings: RouterSettings, folder: Path) -> EnvoyConfig:
    """Return the bootstrap; ``folder`` is where Envoy finds the endpoints file."""
    admin = {"address": settings.admin_host, "port_value": settings.admin_port}
    return {
        "node": {"id": "promptprefix-router", "cluster": "promptprefix-router"},
        "admin": {"address": {"socket_address": admin}},
        "overload_manager": {"resource_monitors": [_connection_limit(settings)]},
        "static_resources": {
            "listeners": [client_listener(settings), stats_listener(settings)],
            "clusters": clusters(settings, folder),
        },
    }


def _connection_limit(settings: RouterSettings) -> EnvoyConfig:
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.resource_monitors"
            ".downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": settings.max_connections,
        },
    }


def write_bootstrap(settings: RouterSettings, folder: Path) -> Path:
    """Write the bootstrap, and an endpoints file if there is none; return the bootstrap's path.

    Raises `OSError` if ``folder`` can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    EndpointsFile(folder).create()
    path = folder / BOOTSTRAP_FILE
    replace_file(path, json.dumps(bootstrap(settings, folder), indent=1).encode() + b"\n")
    return path
