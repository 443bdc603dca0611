"""Overload: who may be refused, when, and what they are told."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.decision import Decision
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import HttpRequest
from promptprefix_router.envoy.client_routes import RouteRules, route_configuration
from promptprefix_router.envoy.header_plan import HeaderRoute
from promptprefix_router.gateway.ext_proc_codec import decode
from promptprefix_router.gateway.ext_proc_events import RequestHead
from promptprefix_router.gateway.ext_proc_messages import ProcessingRequest
from promptprefix_router.matching.matcher import Matcher, MatchKind, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.settings import RouterSettings
from promptprefix_router.shedding import NO_SHEDDING, Shedding

from .samples import DIGEST, chat, chooser, decided, endpoint, prefix, routes

CHAT = "/v1/chat/completions"
BATCH = Shedding("x-objective", frozenset({"batch"}), 4)
ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000")


def picker(*loads: int, saturated_at: int = 4, ready: bool = True) -> Picker:
    """Return a picker whose two endpoints, the first one warm, have so many active requests."""
    ledger, memo = LoadLedger(), FingerprintMemo(4)
    made = Picker(
        Matcher(memo),
        chooser(ledger, saturated_at=saturated_at),
        MatchTally(time.time),
        RouterMetrics(memo, time.monotonic),
        time.perf_counter,
    )
    pool = (endpoint(1, warm=(DIGEST,), ready=ready), endpoint(2, ready=ready))
    made.use(routes(*pool, prefixes=(prefix(),)))
    ledger.begin_reading()
    ledger.finish_reading(LoadReading(dict(zip(ADDRESSES, loads, strict=False))))
    return made


def asked(made: Picker, sheddable: bool = True, body: bytes = b"") -> Decision:
    return decided(made, Question(CHAT, body or chat(), sheddable=sheddable))


@pytest.mark.parametrize(
    ("loads", "sheddable", "saturated_at", "shed"),
    [
        ((4, 4), True, 4, True),
        ((4, 400), True, 4, True),
        ((4, 3), True, 4, False),
        ((3, 4), True, 4, False),
        ((4, 4), False, 4, False),
        ((400, 400), True, 0, False),
        ((0, 0), True, 4, False),
    ],
)
def test_when_a_request_is_shed(
    loads: tuple[int, ...], sheddable: bool, saturated_at: int, shed: bool
) -> None:
    decision = asked(picker(*loads, saturated_at=saturated_at), sheddable)
    assert (decision.outcome is Outcome.SHED) is shed
    assert (decision.endpoint is None) is shed


def test_what_is_sent_on_its_way_counts_and_what_is_shed_does_not() -> None:
    made = picker(2, 4)
    outcomes = [asked(made).outcome for _ in range(6)]
    assert outcomes == [Outcome.WARM] * 2 + [Outcome.SHED] * 4


def test_only_those_that_serve_the_model_are_asked() -> None:
    for body in (b'{"model":"another","messages":[]}', b'{"messages":[]}', b"{"):
        assert asked(picker(4, 4), body=body).outcome is Outcome.SHED
        assert asked(picker(4, 0), body=body).outcome is Outcome.UNROUTED
    assert asked(picker(4, 4, ready=False)).outcome is Outcome.UNROUTED
    only = Question(CHAT, chat(), subset=frozenset(ADDRESSES[:1]), sheddable=True)
    assert decided(picker(4, 0), only).outcome is Outcome.SHED
    assert decided(picker(0, 4), only).outcome is Outcome.WARM


def test_a_refusal_says_when_to_come_back_to_each_another_time() -> None:
    made = picker(4, 4)
    refusals = [asked(made).refusal for _ in range(8)]
    waits = [dict(each.headers)["retry-after"] for each in refusals if each is not None]
    assert waits == ["2", "3", "4", "5"] * 2
    assert all(each is not None and each.status == 429 for each in refusals)
    decision = asked(made)
    assert decision.match is MatchKind.FINGERPRINT
    assert decision.summary == "shed;match=fingerprint"


@pytest.mark.parametrize(
    ("told", "covered"),
    [
        ("batch", True),
        (" batch ", True),
        ("chat,batch", True),
        ("batch,", True),
        ("", False),
        (",", False),
        ("Batch", False),
        ("batches", False),
        ("chat", False),
    ],
)
def test_objectives(told: str, covered: bool) -> None:
    assert BATCH.covers(told) is covered
    assert not NO_SHEDDING.covers(told)


@given(st.lists(st.text(max_size=8), max_size=4), st.integers(min_value=0, max_value=4))
def test_nothing_that_is_added_takes_the_objective_back(added: list[str], place: int) -> None:
    lines = [*added[:place], "batch", *added[place:]]
    assert BATCH.covers(",".join(lines))


def test_the_standalone_door_reads_the_header_and_tells_the_refusal() -> None:
    door = ExtAuthz(picker(4, 4), 4096, "", BATCH)
    headers = {b"x-objective": b"chat,batch"}
    answer = door.answer(HttpRequest("POST", CHAT, headers, chat()))
    assert answer.status == 429
    told = dict(answer.headers)
    assert told["x-promptprefix-decision"] == "shed;match=fingerprint"
    assert told["retry-after"] == "2"
    assert door.answer(HttpRequest("POST", CHAT, {}, chat())).status == 200
    off = ExtAuthz(picker(4, 4), 4096)
    assert off.answer(HttpRequest("POST", CHAT, headers, chat())).status == 200


@pytest.mark.parametrize(
    ("lines", "sheddable"),
    [
        ((), False),
        (("chat",), False),
        (("batch",), True),
        (("chat", "batch"), True),
        (("batch", "chat"), True),
        (("chat, batch",), True),
    ],
)
def test_the_gateway_door_reads_all_of_the_headers(lines: tuple[str, ...], sheddable: bool) -> None:
    headers = [{"key": ":path", "raw_value": CHAT.encode()}]
    headers += [{"key": "x-objective", "raw_value": line.encode()} for line in lines]
    message = ProcessingRequest(request_headers={"headers": {"headers": headers}})
    event = decode(message.SerializeToString(), shedding=BATCH)
    assert isinstance(event, RequestHead)
    assert event.sheddable is sheddable
    assert decode(message.SerializeToString()) == RequestHead(path=CHAT)


def test_envoy_decides_alone_only_without_the_header() -> None:
    named = (HeaderRoute("support-triage", "id-1", Outcome.WARM, ("g",)),)
    alone = json.dumps(route_configuration(named, RouteRules()))
    assert "not_matcher" not in alone
    for team in ("", "x-team"):
        routes = json.dumps(route_configuration(named, RouteRules(team, "x-objective")))
        assert routes.count('"not_matcher"') == (2 if team else 1)
        assert "x-objective" in routes
        assert ("x-team" in routes) == bool(team)


@pytest.mark.parametrize(
    ("changes", "shedding"),
    [
        ({}, NO_SHEDDING),
        ({"saturated_at": 9}, NO_SHEDDING),
        ({"sheddable_objectives": "a"}, NO_SHEDDING),
        ({"saturated_at": 9, "sheddable_objectives": " , "}, NO_SHEDDING),
        (
            {"saturated_at": 9, "sheddable_objectives": "a, b,"},
            Shedding("x-gateway-inference-objective", frozenset("ab"), 9),
        ),
    ],
)
def test_settings(changes: dict[str, object], shedding: Shedding) -> None:
    made = RouterSettings(tenant="ml", **changes)  # type: ignore[arg-type]
    assert made.shedding == shedding


@pytest.mark.parametrize(
    "name", ["", "X-Objective", "authorization", "x-promptprefix", "x-gateway-destination-endpoint"]
)
def test_a_header_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        RouterSettings(tenant="ml", objective_header=name)
