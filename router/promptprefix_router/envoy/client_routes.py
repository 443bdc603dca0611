"""What Envoy does with each request of a client: its route configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from promptprefix_router.envoy.configuration import EnvoyConfig
from promptprefix_router.envoy.endpoints_file import ENGINES_CLUSTER, GROUP_KEY
from promptprefix_router.envoy.header_plan import HeaderRoute
from promptprefix_router.envoy.route_filters import ASK, HEALTH, REWRITE, with_filters
from promptprefix_router.envoy.tenant_fence import tenant_routes
from promptprefix_router.header_names import DECISION_HEADER, PREFIX_HEADER, REWRITE_HEADER
from promptprefix_router.matching.matcher import MatchKind
from promptprefix_router.settings import IDLE_TIMEOUT_S, RouterSettings

CLIENT_ROUTES = "clients"
"""Name of the clients' route configuration, and of the virtual host in it."""

NO_GROUP = "none"
"""A group that no pod has."""

PICKED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
)
"""Paths whose requests the picker sees, unless their header names a prefix that Envoy knows."""

PLAIN_PATHS = ("/v1/models",)
"""Paths that any engine answers; the picker is not asked."""

_TYPE = "type.googleapis.com/envoy.extensions"
_ROUTE = "type.googleapis.com/envoy.config.route.v3"
_HEADER_INPUT = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_RETRY_ON = "connect-failure,refused-stream,reset-before-request"


@dataclass(frozen=True)
class RouteRules:
    """What all routes have in common.

    ``tenant_header`` names the header that says the tenant, ``objective_header`` the one that says
    the objective; empty without one. ``idle_timeout_s`` is the longest silence of a stream.
    """

    tenant_header: str = ""
    objective_header: str = ""
    idle_timeout_s: int = IDLE_TIMEOUT_S

    @classmethod
    def of(cls, settings: RouterSettings) -> Self:
        """Return the rules that the settings ask for."""
        return cls(settings.tenant_header, settings.shedding.header, settings.idle_timeout_s)

    def to_engines(self) -> EnvoyConfig:
        """Return where the requests of a route go."""
        # A generation takes as long as it takes; silence is bounded.
        return {
            "cluster": ENGINES_CLUSTER,
            "timeout": "0s",
            "idle_timeout": f"{self.idle_timeout_s}s",
        }


def route_configuration(named: Sequence[HeaderRoute], rules: RouteRules) -> EnvoyConfig:
    """Return the routes of clients; ``named`` are those by header, resolved by Envoy alone."""
    host = {"name": CLIENT_ROUTES, "domains": ["*"], "retry_policy": _retry_policy()}
    rest = _ordinary(rules)
    found = {"matcher": _by_header(named, rules, rest)} if named else {"routes": rest}
    return {
        "@type": f"{_ROUTE}.RouteConfiguration",
        "name": CLIENT_ROUTES,
        "virtual_hosts": [{**host, **found}],
    }


def _by_header(
    named: Sequence[HeaderRoute], rules: RouteRules, rest: Sequence[EnvoyConfig]
) -> EnvoyConfig:
    """Return how names are resolved: by one look-up; a request without a known one goes on.

    So does one with a tenant or an objective: for a tenant a salt may be due, which goes into the
    body; an objective may be sheddable.
    """
    tree = {
        "input": _header_input(PREFIX_HEADER),
        "exact_match_map": {"map": {route.name: _action(_named(route, rules)) for route in named}},
    }
    # A path that is matched here still has its query.
    on_path = [
        {"single_predicate": {"input": _header_input(":path"), "value_match": match}}
        for path in PICKED_PATHS
        for match in ({"exact": path}, {"prefix": f"{path}?"})
    ]
    predicate: EnvoyConfig = {"or_matcher": {"predicate": on_path}}
    without = [
        _without_header(header)
        for header in (rules.tenant_header, rules.objective_header)
        if header
    ]
    if without:
        predicate = {"and_matcher": {"predicate": [*without, predicate]}}
    only_picked = {
        "predicate": predicate,
        "on_match": {"matcher": {"matcher_tree": tree}},
    }
    others = {"@type": f"{_ROUTE}.RouteList", "routes": rest}
    return {"matcher_list": {"matchers": [only_picked]}, "on_no_match": _action(others)}


def _header_input(name: str) -> EnvoyConfig:
    return {"name": name, "typed_config": {"@type": _HEADER_INPUT, "header_name": name}}


def _without_header(name: str) -> EnvoyConfig:
    anything = {"safe_regex": {"google_re2": {}, "regex": ".*"}}
    present = {"input": _header_input(name), "value_match": anything}
    return {"not_matcher": {"single_predicate": present}}


def _action(typed_config: EnvoyConfig) -> EnvoyConfig:
    return {"action": {"name": "route", "typed_config": typed_config}}


def _named(route: HeaderRoute, rules: RouteRules) -> EnvoyConfig:
    """Return the route of a name: to the first group with a healthy pod, and nowhere else."""
    groups = [{GROUP_KEY: group} for group in route.groups or (NO_GROUP,)]
    summary = f"{route.outcome};match={MatchKind.HEADER}"
    return {
        "@type": f"{_ROUTE}.Route",
        "match": {"prefix": "/"},
        "route": {
            **rules.to_engines(),
            "metadata_match": {"filter_metadata": {"envoy.lb": {"fallback_list": groups}}},
        },
        # Envoy counts by this name; the picker reads it.
        "stat_prefix": route.name,
        "response_headers_to_add": [{"header": {"key": DECISION_HEADER, "value": summary}}],
    }


def _ordinary(rules: RouteRules) -> list[EnvoyConfig]:
    picked = [
        {
            "match": {"path": path},
            "route": rules.to_engines(),
            "request_headers_to_remove": [REWRITE_HEADER],
            **with_filters(ASK, REWRITE),
        }
        for path in PICKED_PATHS
    ]
    plain = [{"match": {"path": path}, "route": rules.to_engines()} for path in PLAIN_PATHS]
    health = {
        "match": {"path": "/health"},
        "direct_response": {"status": 200, "body": {"inline_string": "ok\n"}},
        **with_filters(HEALTH),
    }
    return [*plain, health, *tenant_routes(rules.tenant_header), *picked, _not_found()]


def _retry_policy() -> EnvoyConfig:
    """Only what no engine can have begun is sent again."""
    previous_hosts = {
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": {"@type": f"{_TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
    }
    return {
        "retry_on": _RETRY_ON,
        "num_retries": 3,
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [previous_hosts],
    }


def _not_found() -> EnvoyConfig:
    error = {
        "message": "Not a path of this API. Served: "
        + ", ".join((*PICKED_PATHS, *PLAIN_PATHS, "/health")),
        "type": "invalid_request_error",
        "param": None,
        "code": "not_found",
    }
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": json.dumps({"error": error})}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }
