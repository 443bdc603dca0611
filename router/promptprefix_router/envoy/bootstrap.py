"""Envoy's bootstrap: one static file; endpoints and routes change while it runs."""

from __future__ import annotations

import json
from pathlib import Path

from promptprefix_router.envoy.client_routes import CLIENT_ROUTES, RouteRules
from promptprefix_router.envoy.clusters import clusters
from promptprefix_router.envoy.configuration import EnvoyConfig
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.listeners import client_listener, stats_listener
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.envoy.watched_file import WatchedFile
from promptprefix_router.settings import RouterSettings

_ROUTE_DETAILS = {
    "safe_regex": {
        "regex": rf"vhost\.{CLIENT_ROUTES}\.route\..*\.upstream_rq_"
        "(retry.*|timeout|time|completed|[0-9]{3}|[0-9]xx|unknown)"
    }
}
"""Statistics of a name that nobody reads: with thousands of names they would be most of all."""

BOOTSTRAP_FILE = "bootstrap.json"


def bootstrap(settings: RouterSettings, folder: Path) -> EnvoyConfig:
    """Return the bootstrap; ``folder`` is where Envoy finds its other files."""
    admin = {"address": settings.admin_host, "port_value": settings.admin_port}
    return {
        "node": {"id": "promptprefix-router", "cluster": "promptprefix-router"},
        "admin": {"address": {"socket_address": admin}},
        "overload_manager": {"resource_monitors": [_connection_limit(settings)]},
        "stats_config": {"stats_matcher": {"exclusion_list": {"patterns": [_ROUTE_DETAILS]}}},
        "static_resources": {
            "listeners": [client_listener(settings, folder), stats_listener(settings)],
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
    """Write the bootstrap, and endpoints and routes where there are none; return its path.

    Raises `OSError` if ``folder`` can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    EndpointsFile(folder).create()
    RoutesFile(folder, RouteRules.of(settings)).create()
    path = folder / BOOTSTRAP_FILE
    WatchedFile(path).write(json.dumps(bootstrap(settings, folder), indent=1).encode() + b"\n")
    return path
