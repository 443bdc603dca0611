"""What of a request makes its prompt, and when two begin alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import Revision, RoutePrefix, RouteTable
from promptprefix_router.choosing.prompt_chain import CHUNK_BYTES, MAX_CHUNKS, NO_CHAIN, read_chain
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.matcher import Matcher, MatchKind, Question
from promptprefix_router.matching.memo import FingerprintMemo

CHAT = "/v1/chat/completions"
LONG = "word " * 1000


def chain(path: str = CHAT, /, salt: str = "", **fields: Any) -> tuple[int, ...]:
    """Return the hashes of a request whose engine reads ``salt``."""
    question = Question(path, json.dumps({"model": "m", **fields}).encode())
    return read_chain(question, salt).hashes


def shared(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """Return how many chunks two prompts share, and check that what differs stays different."""
    same = [a == b for a, b in zip(one, two, strict=False)]
    count = same.index(False) if False in same else len(same)
    assert not any(same[count:])
    return count


def turn(content: str, role: str = "user") -> dict[str, str]:
    """Return a turn."""
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [turn(LONG)]}),
        (CHAT, {"messages": [turn("hi")], "tools": [{"name": LONG}]}),
        ("/v1/messages", {"messages": [turn("hi")], "system": LONG}),
        ("/v1/responses", {"input": "hi", "instructions": LONG}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": list(range(2000))}),
    ],
)
def test_each_api_has_prompts(path: str, fields: dict[str, Any]) -> None:
    hashes = chain(path, **fields)
    assert len(hashes) >= 4
    assert chain(path, **fields, temperature=0.5, user="me", stream=True) == hashes
    assert shared(chain(path, salt="s", **fields), hashes) == 0
    assert chain(path, **fields, cache_salt="of its client's own") == hashes
    assert shared(chain(path, **{**fields, "model": "n"}), hashes) == 0


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens", "/v1/models"])
def test_what_computes_no_prompt_has_none(path: str) -> None:
    assert chain(path, messages=[turn(LONG)], input=LONG) == ()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", LONG.encode(), b'{"messages":[' * 300, b"[" * 5000, b'{"model":1}']
)
def test_what_is_no_request_has_none(body: bytes) -> None:
    assert read_chain(Question(CHAT, body)) is NO_CHAIN


def test_a_body_that_was_cut_has_none() -> None:
    body = json.dumps({"model": "m", "messages": [turn(LONG)]}).encode()
    assert read_chain(Question(CHAT, body, partial=True)) is NO_CHAIN


def test_a_talk_begins_with_its_earlier_turns() -> None:
    turns = [turn(LONG, "system"), turn("x" * 3000), turn("y" * 3000, "assistant"), turn("z")]
    before, after = chain(messages=turns[:2]), chain(messages=turns)
    assert shared(before, after) == len(before) == 7


def test_tools_come_first() -> None:
    tools = [{"name": "f", "description": LONG}]
    one = chain(tools=tools, messages=[turn("x" * 5000)])
    two = chain(messages=[turn("y" * 5000)], tools=tools)
    assert shared(one, two) == 4


def test_a_prompt_without_end_is_looked_at_to_some_depth() -> None:
    assert len(chain(messages=[turn("x" * CHUNK_BYTES * (MAX_CHUNKS + 9))])) == MAX_CHUNKS


@pytest.mark.parametrize("salt", ["", "s"])
def test_what_is_known_of_a_talk_changes_nothing(salt: str) -> None:
    tools = [{"type": "function", "function": {"name": "known", "description": LONG}}]
    prefix = RoutePrefix(
        name="p",
        tenant="ml",
        model="m",
        fingerprint=payload_fingerprint(
            "m", Payload(systemInstructions=LONG, toolDefinitions=json.dumps(tools))
        ),
    )
    table = RouteTable(revision=Revision(term=1, number=1), prefixes=(prefix,), endpoints=())
    matcher, routes = Matcher(FingerprintMemo(8)), Routes.from_table(table, "ml")
    for number in range(3):
        turns = [turn(LONG, "system"), *(turn("x" * 700 * each) for each in range(number))]
        body = json.dumps({"model": "m", "messages": turns, "tools": tools}).encode()
        question, unknown = Question(CHAT, body), Question(CHAT, body)
        object.__setattr__(unknown, "known", None)
        assert question.known is not None or not number
        assert read_chain(question, salt) == read_chain(unknown, salt)
        assert matcher.match(question, routes).kind is MatchKind.FINGERPRINT


def test_no_text_is_shown() -> None:
    body = json.dumps({"model": "m", "messages": [turn("secret" * 400)]}).encode()
    assert "secret" not in repr(read_chain(Question(CHAT, body)))


@settings(deadline=None)
@given(cut=st.integers(0, 6000), size=st.integers(0, 4000))
def test_prompts_share_the_whole_chunks_before_they_differ(cut: int, size: int) -> None:
    text = "abcdefgh" * 1000
    one = chain("/v1/completions", prompt=text)
    two = chain("/v1/completions", prompt=text[:cut] + "!" * size)
    assert shared(one, two) == min((cut + 1) // CHUNK_BYTES, len(two))


def test_places_tell_beginnings_and_ends_apart() -> None:
    def places(*texts: str) -> tuple[int, int]:
        body = json.dumps({"model": "m", "messages": [turn(text) for text in texts]}).encode()
        found = read_chain(Question(CHAT, body))
        return found.opening, found.ending

    one, two = places(LONG, "x" * 2000), places(LONG, "y" * 2000)
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert places("z" + LONG, "x" * 2000)[0] != one[0]
