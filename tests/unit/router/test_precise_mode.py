"""The precise mode: who waits for tokens, what falls back and why, and what is told of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from promptprefix_router.decision import Decision
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import HttpRequest, HttpResponse
from promptprefix_router.gateway.gateway_picker import GatewayPicker
from promptprefix_router.gateway.open_requests import OpenRequests
from promptprefix_router.header_names import DECISION_HEADER, DESTINATION_HEADER
from promptprefix_router.matching.matcher import Question
from promptprefix_router.precise.precise_mode import FAILURES
from promptprefix_router.precise.prompt_tokens import PromptTokens

from .precise_stand import CHAT, TEXT, PreciseStand, address, asked, names_of
from .samples import chat, endpoint, message, prefix, response


@pytest.fixture
def stand() -> PreciseStand:
    """Return four pods, of which the third holds the text."""
    made = PreciseStand()
    for last in (1, 2, 3, 4):
        made.feed(last, names_of(TEXT) if last == 3 else ())
    return made


async def test_an_undeclared_prompt_goes_where_it_is_held(stand: PreciseStand) -> None:
    assert await stand.ask(asked()) == (address(3), "held;match=undeclared")
    assert stand.metric("precise_decisions_total") == 1
    assert stand.metric("precise_token_seconds_count") == 1
    assert stand.fallbacks() == {}


async def test_what_nobody_holds_is_hashed_and_lands_together(stand: PreciseStand) -> None:
    first = await stand.ask(asked(f"Another one. {TEXT}"))
    assert first[1] == "hashed;match=undeclared"
    for number in range(4):
        again = await stand.ask(asked(f"Another one. {TEXT} {number}"))
        assert again == (first[0], "held;match=undeclared")


async def test_declared_prefixes_never_wait() -> None:
    stand = PreciseStand(prefixes=(prefix(),))
    stand.feed(1)
    for question in (
        Question(CHAT, chat("x" * 5000)),
        Question(CHAT, json.dumps({"model": "m", "x": TEXT}).encode(), prefix_name="p"),
    ):
        assert isinstance(stand.picker.consult(question), Decision)
    assert stand.questions == []
    assert stand.fallbacks() == {}


@pytest.mark.parametrize(
    "question",
    [
        asked("short"),
        Question("/v1/embeddings", asked().body),
        Question("/v1/messages/count_tokens", asked().body),
        asked(model="other"),
        Question(CHAT, b"x" * 2000),
    ],
)
def test_what_is_short_or_has_no_prompt_waits_for_nothing(
    stand: PreciseStand, question: Question
) -> None:
    assert isinstance(stand.picker.consult(question), Decision)
    assert stand.fallbacks() == {}


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question("/v1/messages", message("x" * 2000)), "api"),
        (Question("/v1/responses", response("x" * 2000)), "api"),
        (Question(CHAT, chat("x" * 2000, documents=[])), "unsupported"),
        (Question(CHAT, chat("x" * 2000), partial=True), "partial"),
    ],
)
async def test_what_cannot_be_rendered_is_sent_by_estimate_and_counted(
    stand: PreciseStand, question: Question, reason: str
) -> None:
    place, told = await stand.ask(question)
    assert told.split(";")[0] in ("hashed", "least-loaded")
    again = await stand.ask(question)
    assert again[0] == place or reason == "partial"
    assert stand.fallbacks() == {reason: 2}
    assert stand.questions == []


async def test_engines_that_are_away_cost_a_fallback_and_then_the_mode(
    stand: PreciseStand,
) -> None:
    assert stand.told == [True]
    stand.away = True
    with capture_logs() as logs:
        for _ in range(FAILURES + 4):
            _, told = await stand.ask(asked())
        assert told == "seen;match=undeclared"
        assert stand.fallbacks() == {"unreachable": 4, "paused": FAILURES}
        assert stand.told == [True, False]
        stand.now += 1
        stand.away = False
        assert (await stand.ask(asked()))[1].startswith("held")
        assert stand.told == [True, False, True]
    events = [log["event"] for log in logs]
    assert events == ["precise mode not in force", "precise mode in force"]
    assert "nobody declared" not in str(logs)


async def test_without_a_feed_all_is_as_in_the_approximate_mode() -> None:
    stand = PreciseStand()
    first = await stand.ask(asked())
    assert first[1] == "hashed;match=undeclared"
    assert await stand.ask(asked()) == (first[0], "seen;match=undeclared")
    assert stand.fallbacks() == {"no-feed": 2}
    assert stand.questions == []
    stand.feed(1)
    assert stand.told == [True]
    stand.blocks.lose(address(1))
    assert stand.told == [True, False]


async def test_a_pod_without_a_feed_counts_by_what_was_sent_there(stand: PreciseStand) -> None:
    text = f"Told by nobody. {TEXT}"
    stand.use(endpoint(1))
    stand.blocks.lose(address(1))
    await stand.ask(asked(text))
    stand.use(*(endpoint(n, blocks_port=1) for n in (1, 2, 3, 4)))
    # An estimate is called one, whatever else is known precisely.
    assert await stand.ask(asked(text)) == (address(1), "seen;match=undeclared")
    # Once its feed says that nothing is there, that counts.
    stand.feed(1)
    assert (await stand.ask(asked(text)))[1] == "hashed;match=undeclared"


async def test_the_door_of_envoy_answers_later(stand: PreciseStand) -> None:
    door = ExtAuthz(stand.picker, 1_000_000)
    stand.hold.clear()
    answer = door.answer(HttpRequest("POST", "/v1/completions", {}, asked().body))
    assert not isinstance(answer, HttpResponse)
    waiting = asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    assert not waiting.done()
    stand.hold.set()
    headers = dict((await waiting).headers)
    assert headers[DECISION_HEADER] == "held;match=undeclared"
    assert headers[DESTINATION_HEADER].startswith(address(3))
    assert isinstance(
        door.answer(HttpRequest("POST", "/v1/completions", {}, asked("short").body)), HttpResponse
    )


async def test_the_door_of_gateways_answers_later(stand: PreciseStand) -> None:
    picker = GatewayPicker(stand.picker, OpenRequests(stand.ledger), stand.metrics, 1_000_000)
    later = picker.consult(
        Question("/team/v1/chat/completions", chat("x" * 2000), subset=frozenset({"10.0.0.2"}))
    )
    assert not isinstance(later, Decision)
    assert (await later).destination == address(2)
    assert isinstance(picker.consult(asked("short")), Decision)


async def test_a_change_of_routes_meanwhile_does_no_harm(stand: PreciseStand) -> None:
    stand.hold.clear()
    decision = stand.picker.consult(asked())
    assert not isinstance(decision, Decision)
    waiting = asyncio.ensure_future(decision)
    await asyncio.sleep(0)
    stand.use(endpoint(7, blocks_port=1))
    stand.hold.set()
    found = await waiting
    assert found.endpoint is not None
    assert found.endpoint.address == address(7)


def test_nothing_shows_tokens_or_a_salt() -> None:
    shown = repr(PromptTokens.of("m", [77777], "secret"))
    assert shown == "PromptTokens(model='m')"
