"""Envoy's fence around requests of tenants: none passes that the picker has not seen.

The picker marks each of them, and Envoy then chooses the route anew. Before that, and so when the
picker can't be asked, a request with a tenant has a route that ends here.
"""

from __future__ import annotations

from promptprefix_router.envoy.configuration import EnvoyConfig
from promptprefix_router.envoy.route_filters import ASK_FENCED, REWRITE, with_filters
from promptprefix_router.header_names import REWRITE_HEADER

_AWAY = "A tenant's request can't be given its cache salt just now: send it again."
"""The listener writes it as JSON, as all answers of its own that are errors of a server."""


def tenant_routes(header: str) -> list[EnvoyConfig]:
    """Return the routes that end requests of tenants, to stand before those that serve them.

    There are none without a ``header``.
    """
    if not header:
        return []
    unseen = {"name": REWRITE_HEADER, "present_match": True, "invert_match": True}
    return [
        {
            "match": {
                "prefix": "/v1/",
                "headers": [{"name": header, "present_match": True}, unseen],
            },
            "direct_response": {"status": 503, "body": {"inline_string": _AWAY}},
            **with_filters(ASK_FENCED, REWRITE),
        }
    ]
