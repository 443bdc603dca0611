"""Envoy's way for the requests whose body the picker wants changed, and for no others.

The picker marks a request with a header; Envoy then chooses the route anew, and only the route of
that mark lets the filter hand over the body. All other requests pass the filter untouched.
"""

from __future__ import annotations

from promptprefix_router.envoy.clusters import REWRITE_CLUSTER
from promptprefix_router.envoy.configuration import EnvoyConfig
from promptprefix_router.header_names import REWRITE_HEADER
from promptprefix_router.rewriting.rewriter import SALT_MANNER, TEXT_MANNER
from promptprefix_router.settings import RouterSettings

PATIENCE = 5
"""A body is given so many times the time of a decision: it is read and written anew."""

_FILTER = "envoy.filters.http.ext_proc"
_TYPE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3"
_NOTHING = {
    "request_header_mode": "SKIP",
    "request_body_mode": "NONE",
    "request_trailer_mode": "SKIP",
    "response_header_mode": "SKIP",
    "response_body_mode": "NONE",
    "response_trailer_mode": "SKIP",
}


def rewrite_filter(settings: RouterSettings) -> EnvoyConfig:
    """Return the filter; it does nothing but on the routes of `rewrite_routes`."""
    return {
        "name": _FILTER,
        "typed_config": {
            "@type": f"{_TYPE}.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": REWRITE_CLUSTER}},
            "processing_mode": _NOTHING,
            "message_timeout": f"{PATIENCE * settings.decision_timeout_ms / 1000:g}s",
            # A request whose text only is to be spelled otherwise passes as it is.
            "failure_mode_allow": True,
            "status_on_error": {"code": "ServiceUnavailable"},
        },
    }


def rewrite_routes(route: EnvoyConfig) -> list[EnvoyConfig]:
    """Return the routes of marked requests, to stand before all others; ``route`` is where to."""
    mode = {**_NOTHING, "request_header_mode": "SEND", "request_body_mode": "BUFFERED"}
    optional = {"processing_mode": mode}
    required = {**optional, "failure_mode_allow": False}
    return [_marked(TEXT_MANNER, route, optional), _marked(SALT_MANNER, route, required)]


def _marked(manner: str, route: EnvoyConfig, overrides: EnvoyConfig) -> EnvoyConfig:
    return {
        "match": {
            "prefix": "/",
            "headers": [{"name": REWRITE_HEADER, "string_match": {"exact": manner}}],
        },
        "route": route,
        "request_headers_to_remove": [REWRITE_HEADER],
        "typed_per_filter_config": {
            _FILTER: {"@type": f"{_TYPE}.ExtProcPerRoute", "overrides": overrides}
        },
    }
