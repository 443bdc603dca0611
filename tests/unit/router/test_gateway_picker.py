"""What the gateway door adds to the picker: an endpoint for every request, or a refusal."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client import CollectorRegistry

from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.gateway.gateway_metrics import GatewayMetrics
from promptprefix_router.gateway.gateway_picker import GatewayPicker, api_path
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.gateway.pool_memory import PoolMemory
from promptprefix_router.matching.matcher import Matcher, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

from .samples import DIGEST, chat, chooser, decided, endpoint, prefix, routes

WARM = routes(
    endpoint(1, warm=(DIGEST,)),
    endpoint(2),
    endpoint(3, address="::1"),
    endpoint(4, ready=False),
    prefixes=(prefix(), prefix("salted", salt="s")),
)
CHAT = "/v1/chat/completions"


def gateway(table: Routes = WARM) -> tuple[GatewayPicker, OpenRequests, LoadLedger]:
    """Return a gateway's picker over ``table``."""
    memo = FingerprintMemo(4)
    ledger = LoadLedger()
    metrics = RouterMetrics(memo, time.monotonic)
    picker = Picker(
        Matcher(memo), chooser(ledger), MatchTally(time.time), metrics, time.perf_counter
    )
    picker.use(table)
    requests = OpenRequests(ledger)
    return GatewayPicker(picker, requests, metrics, 4096), requests, ledger


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (CHAT, CHAT),
        ("/team-a/v1/chat/completions", CHAT),
        ("/team-a/v1/messages", "/v1/messages"),
        ("/v1/models", "/v1/models"),
        ("", ""),
    ],
)
def test_paths_under_a_gateways_own(path: str, known: str) -> None:
    assert api_path(path) == known


@pytest.mark.parametrize(
    ("subset", "address"),
    [
        (None, "10.0.0.1:8000"),
        ({"10.0.0.1:8000", "10.0.0.2:8000"}, "10.0.0.1:8000"),
        ({"10.0.0.2:8000"}, "10.0.0.2:8000"),
        ({"10.0.0.2"}, "10.0.0.2:8000"),
        ({"[::1]:8000"}, "[::1]:8000"),
        ({"10.0.0.2:8000", "10.9.9.9:8000"}, "10.0.0.2:8000"),
        ({"10.0.0.4:8000"}, None),
        ({"10.0.0.2:9000"}, None),
        ({"10.9.9.9:8000"}, None),
        (set(), None),
    ],
)
def test_only_the_subset_is_chosen_from(subset: set[str] | None, address: str | None) -> None:
    allowed = None if subset is None else frozenset(subset)
    decision = decided(gateway()[0], Question(f"/t{CHAT}", chat(), subset=allowed))
    assert (decision.endpoint.address if decision.endpoint else None) == address
    if address is None:
        assert decision.refusal is not None
        assert decision.refusal.status == 503
        assert json.loads(decision.refusal.body)["error"]["code"] == "no_ready_endpoint"


def test_an_unknown_model_goes_to_the_engines_in_turn() -> None:
    picker, _, _ = gateway()
    question = Question(CHAT, chat(model="nobody's"))
    places = []
    for _ in range(3):
        decision = decided(picker, question)
        assert decision.endpoint is not None
        assert decision.refusal is None
        places.append(decision.endpoint.address)
    assert sorted(places) == ["10.0.0.1:8000", "10.0.0.2:8000", "[::1]:8000"]


def test_without_ready_endpoints_every_request_is_refused() -> None:
    picker, _, _ = gateway(routes(endpoint(1, ready=False)))
    for body in (chat(), b"", b"{"):
        refusal = decided(picker, Question(CHAT, body)).refusal
        assert refusal is not None
        assert refusal.status == 503


@pytest.mark.parametrize(("name", "decides"), [("p", True), ("salted", False), ("q", False)])
def test_names_that_decide_without_the_body(name: str, decides: bool) -> None:
    assert gateway()[0].resolves(name) is decides


def test_open_requests_are_the_load() -> None:
    _, requests, ledger = gateway()
    one, other = routes(endpoint(1), endpoint(2)).endpoints
    assert requests.pick((one, other)) is one
    assert requests.pick((one, other)) is other
    assert requests.pick((one, other)) is one
    assert ledger.load(one.address) == 2
    requests.end(one.address)
    requests.end(one.address)
    requests.end(one.address)
    assert ledger.load(one.address) == 0
    assert requests.pick((other, one)) is one
    requests.end(one.address)
    requests.end(other.address)
    assert ledger.idle


@pytest.mark.parametrize(
    ("served", "word"), [("a:1", "picked"), ("b:2", "fallback"), ("c:3", "other")]
)
def test_what_served_is_counted(served: str, word: str) -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, lambda: 0, lambda: 0)
    metrics.served("a:1,b:2", served)
    name = "promptprefix_router_gateway_served_total"
    found = {w: registry.get_sample_value(name, {"endpoint": w}) for w in ("picked", word, "other")}
    assert found.pop(word) == 1
    assert set(found.values()) == {0}


def test_the_remembered_pool() -> None:
    pool = PoolMemory()
    assert pool.empty
    assert pool.publish(WARM)
    assert not pool.publish(WARM)
    assert not pool.empty
    assert pool.publish(Routes())
    assert pool.empty


def test_a_tenants_request_without_a_body_needs_no_salt() -> None:
    table = routes(endpoint(1), prefixes=(prefix(owner="acme", salt="the-salt-of-acme"),))
    picker = gateway(table)[0]
    assert decided(picker, Question("/v1/models", b"", tenant="acme")).refusal is None
    refusal = decided(picker, Question("/v1/models", b"", partial=True, tenant="acme")).refusal
    assert refusal is not None
    assert refusal.status == 413
