"""Envoy's way for the requests whose body the picker wants changed, and for no others.

The picker marks a request with a header, by which Envoy makes the filter that hands over the body.
Requests without the mark have no such filter.
"""

from __future__ import annotations

from promptprefix_router.envoy.clusters import REWRITE_CLUSTER
from promptprefix_router.envoy.configuration import EnvoyConfig
from promptprefix_router.envoy.route_filters import REWRITE
from promptprefix_router.header_names import REWRITE_HEADER
from promptprefix_router.rewriting.rewriter import SALT_MANNER, TEXT_MANNER
from promptprefix_router.settings import RouterSettings

PATIENCE = 5
"""A body is given so many times the time of a decision: it is read and written anew."""

_FILTERS = "type.googleapis.com/envoy.extensions.filters.http"
_MATCHING = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"
_HEADER_INPUT = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_BODY_ONLY = {
    "request_header_mode": "SEND",
    "request_body_mode": "BUFFERED",
    "request_trailer_mode": "SKIP",
    "response_header_mode": "SKIP",
    "response_body_mode": "NONE",
    "response_trailer_mode": "SKIP",
}


def rewrite_filter(settings: RouterSettings) -> EnvoyConfig:
    """Return the filter. A request whose text only is to be spelled otherwise may pass as it is."""
    by_mark = {
        TEXT_MANNER: _hand_over(settings, or_pass=True),
        SALT_MANNER: _hand_over(settings, or_pass=False),
    }
    mark = {"@type": _HEADER_INPUT, "header_name": REWRITE_HEADER}
    tree = {
        "input": {"name": "mark", "typed_config": mark},
        "exact_match_map": {"map": by_mark},
    }
    return {
        "name": REWRITE,
        "typed_config": {
            "@type": _MATCHING,
            "extension_config": {
                "name": "envoy.filters.http.composite",
                "typed_config": {"@type": f"{_FILTERS}.composite.v3.Composite"},
            },
            "xds_matcher": {"matcher_tree": tree},
        },
    }


def _hand_over(settings: RouterSettings, *, or_pass: bool) -> EnvoyConfig:
    """Return the action that hands the body over; ``or_pass``: it passes if that fails."""
    processor = {
        "@type": f"{_FILTERS}.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": REWRITE_CLUSTER}},
        "processing_mode": _BODY_ONLY,
        "message_timeout": f"{PATIENCE * settings.decision_timeout_ms / 1000:g}s",
        "failure_mode_allow": or_pass,
        "status_on_error": {"code": "ServiceUnavailable"},
    }
    action = {
        "@type": f"{_FILTERS}.composite.v3.ExecuteFilterAction",
        "typed_config": {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
    }
    return {"action": {"name": "hand_over", "typed_config": action}}
