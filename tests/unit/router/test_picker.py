"""The picker answers every question: no input makes it fail."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptprefix.wire import TenantSalt
from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.decision import Decision
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import HttpRequest, HttpResponse
from promptprefix_router.header_names import DECISION_HEADER, DESTINATION_HEADER, REWRITE_HEADER
from promptprefix_router.matching.matcher import Matcher, MatchKind, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

from .samples import DIGEST, TENANT, chat, chooser, decided, endpoint, prefix, routes

LIMIT = 4096


@pytest.fixture(scope="module")
def picker() -> Picker:
    """Return a picker with two endpoints, one of them warm."""
    memo = FingerprintMemo(16)
    metrics = RouterMetrics(memo, time.monotonic)
    tally = MatchTally(time.time)
    made = Picker(Matcher(memo), chooser(), tally, metrics, time.perf_counter)
    made.use(routes(endpoint(1, warm=(DIGEST,)), endpoint(2), prefixes=(prefix(),)))
    return made


def ask(
    picker: Picker, body: bytes, path: str = "/v1/chat/completions", **headers: str
) -> HttpResponse:
    """Ask about a request."""
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return ExtAuthz(picker, LIMIT).answer(HttpRequest("POST", f"{path}?a=b", raw, body))


def test_a_warm_endpoint_is_named(picker: Picker) -> None:
    assert ask(picker, chat()).headers == (
        (DECISION_HEADER, "warm;match=fingerprint"),
        (DESTINATION_HEADER, "10.0.0.1:8000,10.0.0.2:8000"),
    )


def test_a_cut_body_is_partial_even_if_envoy_does_not_say_so(picker: Picker) -> None:
    body = chat("x" * LIMIT)[:LIMIT]
    assert dict(ask(picker, body).headers)[DECISION_HEADER] == "least-loaded;match=partial"


def test_the_header_of_envoy_says_partial(picker: Picker) -> None:
    response = ask(picker, chat()[:-9], x_envoy_auth_partial_body="true")
    assert dict(response.headers)[DECISION_HEADER] == "least-loaded;match=partial"


def test_a_decision_names_everything_that_a_door_tells(picker: Picker) -> None:
    decision = decided(picker, Question("/v1/chat/completions", chat()))
    assert decision.outcome is Outcome.WARM
    assert decision.match is MatchKind.FINGERPRINT
    assert decision.endpoint is not None
    assert decision.endpoint.address == "10.0.0.1:8000"
    assert decision.refusal is None


def test_only_endpoints_of_the_subset_are_chosen(picker: Picker) -> None:
    subset = frozenset({"10.0.0.2:8000", "10.0.0.9:8000"})
    question = Question("/v1/chat/completions", chat(), subset=subset)
    decision = decided(picker, question)
    assert decision.summary == "cold;match=fingerprint"
    assert decision.destination == "10.0.0.2:8000"
    nowhere = decided(picker, Question("/v1/chat/completions", chat(), subset=frozenset()))
    assert nowhere.summary == "unrouted;match=fingerprint"
    assert nowhere.destination == ""


def test_a_command_is_refused_in_the_shape_of_openai(picker: Picker) -> None:
    response = ask(picker, b'{"vllm_xargs":{"promptprefix":"secret"}}')
    assert response.status == 403
    error = json.loads(response.body)["error"]
    assert error["code"] == "engine_command_refused"
    assert "secret" not in response.body.decode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(
    ["model", "messages", "tools", "tool_choice", "chat_template_kwargs", "vllm_xargs", "documents"]
)
bodies = st.one_of(
    st.binary(max_size=200),
    st.dictionaries(fields, json_values).map(lambda body: json.dumps(body).encode()),
    st.dictionaries(fields, json_values).map(lambda body: json.dumps(body).encode("utf-16")),
    st.tuples(st.integers(0, 400), st.binary(max_size=3)).map(
        lambda cut: chat()[: cut[0]] + cut[1] + chat()[cut[0] :]
    ),
)


@settings(max_examples=50, deadline=None)
@given(
    body=bodies,
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/messages", "/"]),
    name=st.text(st.characters(max_codepoint=255), max_size=9),
)
@example(body=b"[" * 100_000, path="/v1/chat/completions", name="")
@example(body=b'{"model":' * 50_000, path="/v1/completions", name="p")
@example(
    body=b'{"model":"m","messages":[' + b"[" * 500 + b"]" * 500 + b"]}",
    path="/v1/chat/completions",
    name="",
)
@example(
    body=b'{"model":"m","messages":[{}],"tools":[' + b"1" * 3000 + b"]}",
    path="/v1/chat/completions",
    name="",
)
@example(
    body=b'{"model":"m","messages":[{"role":"system","content":"\\ud800"}]}',
    path="/v1/chat/completions",
    name="",
)
def test_no_input_makes_it_fail(picker: Picker, body: bytes, path: str, name: str) -> None:
    request = HttpRequest("POST", path, {b"x-promptprefix": name.encode("latin-1")}, body)
    response = ExtAuthz(picker, LIMIT).answer(request)
    assert response.status in (200, 403)
    assert response.encode().startswith(b"HTTP/1.1 ")


def test_a_tenants_request_passes_only_if_its_salt_is_known_or_it_has_none() -> None:
    memo = FingerprintMemo(16)
    metrics = RouterMetrics(memo, time.monotonic)
    tally = MatchTally(time.time)
    fresh = Picker(Matcher(memo), chooser(), tally, metrics, time.perf_counter)
    door = ExtAuthz(fresh, LIMIT, "x-tenant")

    def mark(tenant: str | None, **fields: str) -> str | None:
        headers = {} if tenant is None else {b"x-tenant": tenant.encode()}
        told = door.answer(HttpRequest("POST", "/v1/chat/completions", headers, chat(**fields)))
        assert told.status == 200
        return dict(told.headers).get(REWRITE_HEADER)

    assert (mark("acme"), mark(None)) == (None, None), "no route table yet"
    assert mark("acme", cache_salt="of a client") is None
    fresh.use(routes(prefixes=(prefix(owner="acme", salt="the-salt-of-acme"),)))
    assert (mark("acme"), mark("other"), mark(None)) == ("salt", "none", None)


def test_a_tenant_whose_salt_nobody_can_read_is_refused_by_each_door() -> None:
    memo = FingerprintMemo(16)
    metrics, tally = RouterMetrics(memo, time.monotonic), MatchTally(time.time)
    blind = Picker(Matcher(memo), chooser(), tally, metrics, time.perf_counter)
    unread = TenantSalt(namespace=TENANT, tenant="acme")
    blind.use(routes(endpoint(1), prefixes=(prefix(),), tenants=(unread,)))

    def decide(tenant: str, body: bytes = b"{}", partial: bool = False) -> Decision:
        return decided(blind, Question("/v1/chat/completions", body, partial, tenant=tenant))

    for refused in (decide("acme"), decide("acme", b"", partial=True)):
        assert refused.refusal is not None
        assert refused.refusal.status == 503
    assert decide("acme", b"").refusal is None
    assert decide("other").refusal is None
    headers = {b"x-tenant": b"acme"}
    request = HttpRequest("POST", "/v1/chat/completions", headers, chat())
    told = ExtAuthz(blind, LIMIT, "x-tenant").answer(request)
    assert told.status == 200, "Envoy takes an error for no answer; its fence refuses"
    assert [name for name, _ in told.headers] == [DECISION_HEADER]


def test_a_tenant_keeps_its_salt_while_nothing_of_it_is_routed() -> None:
    salt = TenantSalt(namespace=TENANT, tenant="acme", salt="the-salt-of-acme")
    elsewhere = TenantSalt(namespace="other", tenant="blau")
    table = routes(endpoint(1), prefixes=(prefix(),), tenants=(salt, elsewhere))
    assert table.salt_of("acme") == "the-salt-of-acme"
    assert not table.lacks_salt("acme")
    assert not table.lacks_salt("blau")
