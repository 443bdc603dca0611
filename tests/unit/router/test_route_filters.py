"""Which of Envoy's filters a request meets on its route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.envoy.client_routes import (
    PICKED_PATHS,
    PLAIN_PATHS,
    RouteRules,
    route_configuration,
)
from promptprefix_router.envoy.endpoints_file import ENGINES_CLUSTER
from promptprefix_router.envoy.header_plan import HeaderRoute
from promptprefix_router.envoy.listeners import client_listener
from promptprefix_router.envoy.route_filters import ASK, ASK_FENCED, HEALTH, REWRITE
from promptprefix_router.settings import RouterSettings

NAMED = HeaderRoute("desk", "desk-1", Outcome.WARM, ("group",))
TENANT_HEADER = "x-team"


def listed(tenant_header: str) -> dict[str, dict[str, Any]]:
    """Return the filters of the clients' listener."""
    settings = RouterSettings.model_validate({"tenant": "ml", "tenant_header": tenant_header})
    listener = client_listener(settings, Path("/run/envoy"))
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    return {each["name"]: each for each in manager["typed_config"]["http_filters"]}


def switched_on(route: dict[str, Any]) -> set[str]:
    """Return the filters that a route names."""
    return set(route.get("typed_per_filter_config", {}))


@pytest.mark.parametrize("tenant_header", ["", TENANT_HEADER])
def test_the_listener_forces_no_filter_on_a_request(tenant_header: str) -> None:
    filters = listed(tenant_header)
    assert [name for name, each in filters.items() if not each.get("disabled")] == [
        "envoy.filters.http.router"
    ]
    routes = json.dumps(route_configuration((NAMED,), RouteRules(tenant_header)))
    assert all(
        f'"{name}": {{"@type"' in routes for name in filters if filters[name].get("disabled")
    )


@pytest.mark.parametrize("tenant_header", ["", TENANT_HEADER])
def test_each_route_has_the_filters_that_it_needs(tenant_header: str) -> None:
    (host,) = route_configuration((), RouteRules(tenant_header))["virtual_hosts"]
    for route in host["routes"]:
        match = route["match"]
        wanted = {"/health": {HEALTH}} | {path: {ASK, REWRITE} for path in PICKED_PATHS}
        if "headers" in match:
            assert switched_on(route) == {ASK_FENCED, REWRITE}
        else:
            assert switched_on(route) == wanted.get(match.get("path"), set())
    assert set(PLAIN_PATHS) < {route["match"].get("path") for route in host["routes"]}


def test_a_name_that_envoy_resolves_meets_no_filter() -> None:
    (host,) = route_configuration((NAMED,), RouteRules())["virtual_hosts"]
    (matcher,) = host["matcher"]["matcher_list"]["matchers"]
    tree = matcher["on_match"]["matcher"]["matcher_tree"]
    (route,) = tree["exact_match_map"]["map"].values()
    assert not switched_on(route["action"]["typed_config"])


def test_what_the_manager_counts_is_not_counted_once_more() -> None:
    assert listed("")["envoy.filters.http.router"]["typed_config"]["dynamic_stats"] is False


def test_silence_is_bounded_on_each_way_to_the_engines() -> None:
    """Envoy's own bound is that of a request's head: a route without one would end a stream."""
    routes = json.dumps(route_configuration((NAMED,), RouteRules(idle_timeout_s=77)))
    assert routes.count(f'"cluster": "{ENGINES_CLUSTER}"') == routes.count('"idle_timeout": "77s"')


def test_only_the_fence_has_the_route_chosen_anew() -> None:
    filters = listed(TENANT_HEADER)
    assert filters[ASK_FENCED]["typed_config"]["clear_route_cache"]
    assert not filters[ASK]["typed_config"]["clear_route_cache"]
    assert ASK_FENCED not in listed("")
