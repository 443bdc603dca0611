"""The filters that only some routes need: none of them is there for a request on another route.

A filter costs Envoy time on every request that it merely looks at. So the listener has these
switched off, and a route switches on what it names. Envoy chooses by the route that a request has
at first; a route that is chosen later changes nothing.
"""

from __future__ import annotations

from promptprefix_router.envoy.configuration import EnvoyConfig

HEALTH = "envoy.filters.http.health_check"
ASK = "promptprefix.ask"
"""The picker is asked."""
ASK_FENCED = "promptprefix.ask_fenced"
"""The picker is asked, and the route is chosen anew: its mark leads out of the fence."""
REWRITE = "promptprefix.rewrite"
"""A body that the picker marked is handed to it."""

_SWITCHED_ON = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}


def only_where_named(http_filter: EnvoyConfig) -> EnvoyConfig:
    """Return a filter of the listener that requests meet on the routes that name it alone."""
    return {**http_filter, "disabled": True}


def with_filters(*names: str) -> EnvoyConfig:
    """Return what a route has so that its requests meet these filters."""
    return {"typed_per_filter_config": dict.fromkeys(names, _SWITCHED_ON)}
