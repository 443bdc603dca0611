"""Envoy's listeners: the clients' door, and a door for statistics alone."""

from __future__ import annotations

from pathlib import Path

from promptprefix_router.envoy.client_routes import CLIENT_ROUTES
from promptprefix_router.envoy.clusters import ADMIN_CLUSTER, PICKER_CLUSTER
from promptprefix_router.envoy.configuration import EnvoyConfig, watched
from promptprefix_router.envoy.rewrite_filter import rewrite_filter
from promptprefix_router.envoy.route_filters import ASK, ASK_FENCED, HEALTH, only_where_named
from promptprefix_router.envoy.routes_file import ROUTES_FILE
from promptprefix_router.header_names import (
    DECISION_HEADER,
    DESTINATION_HEADER,
    PREFIX_HEADER,
    REWRITE_HEADER,
)
from promptprefix_router.settings import RouterSettings

INTERNAL_PREFIXES = (DESTINATION_HEADER, "x-envoy-")
"""Headers that steer Envoy or the choice of a pod begin so. Clients have no say in them."""

HEAD_TIMEOUT = "10s"
"""How long a client may take for the head of a request."""

_TYPE = "type.googleapis.com/envoy.extensions"
_HCM = f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager"


def client_listener(settings: RouterSettings, folder: Path) -> EnvoyConfig:
    """Return the listener that clients use; ``folder`` is where Envoy finds the routes file."""
    manager = {
        **_manager("ingress"),
        "rds": _client_routes(folder),
        "early_header_mutation_extensions": [_strip_internal_headers()],
        "use_remote_address": True,
        # No peer is trusted to steer Envoy by its headers, whatever its address.
        "internal_address_config": {},
        # Nothing here reads a request's number, and the client's own reaches the engine.
        "generate_request_id": False,
        # It holds until a request has a route, and the route's own from then on: one timer does
        # for both. A tenant's has one to an engine once the picker has its body: a pause within
        # that is bounded like a head. Paths are not normalised, as every route names whole ones.
        "stream_idle_timeout": HEAD_TIMEOUT,
        "common_http_protocol_options": {"idle_timeout": f"{settings.idle_timeout_s}s"},
        "server_header_transformation": "PASS_THROUGH",
        "local_reply_config": _json_errors(),
        "http_filters": [
            *map(only_where_named, _filters(settings)),
            # The manager counts by status and time as well: once is enough.
            _router(dynamic_stats=False),
        ],
    }
    return _listener("clients", settings.listen_host, settings.listen_port, manager)


def stats_listener(settings: RouterSettings) -> EnvoyConfig:
    """Return the listener that serves ``GET /stats/prometheus`` and nothing else."""
    route = {
        "match": {
            "path": "/stats/prometheus",
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "route": {"cluster": ADMIN_CLUSTER},
    }
    hosts = [{"name": "stats", "domains": ["*"], "routes": [route]}]
    manager = {
        **_manager("stats"),
        "route_config": {"name": "stats", "virtual_hosts": hosts},
        "http_filters": [_router()],
    }
    listener = _listener("stats", settings.stats_host, settings.stats_port, manager)
    # Clients that use up all connections must not blind the monitoring.
    return {**listener, "ignore_global_conn_limit": True}


def _filters(settings: RouterSettings) -> list[EnvoyConfig]:
    fenced = [_ask_picker(ASK_FENCED, settings)] if settings.tenant_header else []
    return [_health(), _ask_picker(ASK, settings), *fenced, rewrite_filter(settings)]


def _client_routes(folder: Path) -> EnvoyConfig:
    return {"route_config_name": CLIENT_ROUTES, "config_source": watched(folder / ROUTES_FILE)}


def _health() -> EnvoyConfig:
    """Return the filter that lets ``/health`` fail as soon as this Envoy drains."""
    return {
        "name": HEALTH,
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.health_check.v3.HealthCheck",
            "pass_through_mode": True,
            "headers": [{"name": ":path", "string_match": {"exact": "/health"}}],
        },
    }


def _ask_picker(name: str, settings: RouterSettings) -> EnvoyConfig:
    headers = (PREFIX_HEADER, settings.tenant_header, settings.shedding.header)
    shown = [header for header in headers if header]
    return {
        "name": name,
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.ext_authz.v3.ExtAuthz",
            "transport_api_version": "V3",
            "failure_mode_allow": True,
            "clear_route_cache": name == ASK_FENCED,
            "allowed_headers": {"patterns": [{"exact": header} for header in shown]},
            # The picker needs no credentials, so it never sees them.
            "disallowed_headers": {"patterns": [{"exact": "authorization"}]},
            "with_request_body": {
                "max_request_bytes": settings.max_request_bytes,
                "allow_partial_message": True,
                "pack_as_bytes": True,
            },
            "http_service": {
                "server_uri": {
                    "uri": f"http://{PICKER_CLUSTER}",
                    "cluster": PICKER_CLUSTER,
                    "timeout": f"{settings.decision_timeout_ms / 1000:g}s",
                },
                "authorization_response": {
                    "allowed_upstream_headers": {
                        "patterns": [{"exact": DESTINATION_HEADER}, {"exact": REWRITE_HEADER}]
                    },
                    "allowed_client_headers_on_success": {"patterns": [{"exact": DECISION_HEADER}]},
                },
            },
        },
    }


def _strip_internal_headers() -> EnvoyConfig:
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{_TYPE}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [
                {"remove": REWRITE_HEADER},
                *(
                    {"remove_on_match": {"key_matcher": {"prefix": prefix}}}
                    for prefix in INTERNAL_PREFIXES
                ),
            ],
        },
    }


def _json_errors() -> EnvoyConfig:
    error = {
        "message": "%LOCAL_REPLY_BODY%",
        "type": "service_unavailable_error",
        "param": None,
        "code": "%RESPONSE_CODE_DETAILS%",
    }
    at_least_500 = {
        "comparison": {
            "op": "GE",
            "value": {"default_value": 500, "runtime_key": "promptprefix.errors_from"},
        }
    }
    return {
        "mappers": [
            {
                "filter": {"status_code_filter": at_least_500},
                "body_format_override": {"json_format": {"error": error}},
            }
        ]
    }


def _router(*, dynamic_stats: bool = True) -> EnvoyConfig:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
            "dynamic_stats": dynamic_stats,
        },
    }


def _manager(stat_prefix: str) -> EnvoyConfig:
    return {"@type": _HCM, "stat_prefix": stat_prefix}


def _listener(name: str, host: str, port: int, manager: EnvoyConfig) -> EnvoyConfig:
    network_filter = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": manager,
    }
    return {
        "name": name,
        "address": {"socket_address": {"address": host, "port_value": port}},
        "filter_chains": [{"filters": [network_filter]}],
    }
