"""Which requests are looked at, what is found, and that no text is kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from promptprefix.near_miss import near_miss
from promptprefix.payload import Payload
from promptprefix_router.matching import near_misses
from promptprefix_router.matching.heads import HeadIndex
from promptprefix_router.matching.matcher import Matcher, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.near_misses import EXAMPLES, MAX_BODY_BYTES, NearMisses
from promptprefix_router.matching.texts import KnownPrefix, Text, Texts

from .samples import MODEL, prefix, routes

PATH = "/v1/chat/completions"
SECRET = "the blue heron"
SYSTEM = f"Desk of 2026-11-29. Opened by {SECRET}. " + "Never guess; ask. " * 40
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]
PAYLOAD = Payload(systemInstructions=SYSTEM, toolDefinitions=json.dumps(TOOLS))


def declared(name: str, payload: Payload, **changes: object) -> KnownPrefix:
    text = Text.of(MODEL, payload)
    fields = {"fingerprint": text.fingerprint, "id": name, "tokens": 1_000}
    return KnownPrefix(prefix(name, **{**fields, **changes}), text)


def body(system: str = SYSTEM, tools: Any = TOOLS, **changes: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    return json.dumps({"model": MODEL, "messages": messages, "tools": tools, **changes}).encode()


class Stand:
    """A sampler with a clock of its own; what it puts off is done by `send`."""

    def __init__(self, *known: KnownPrefix) -> None:
        self.now = 1_000.0
        self.counts: Counter[str] = Counter()
        self.later: list[Callable[[], None]] = []
        self.took = 0.0
        self.matcher = Matcher(FingerprintMemo(64))
        self.routes = routes(prefixes=tuple(each.prefix for each in known))
        self.near = NearMisses(self.later.append, self, self.clock, lambda: 1_764_500_000.0)
        self.near.use(Texts(known, HeadIndex()))

    def clock(self) -> float:
        self.now += self.took
        return self.now

    def looked(self, cause: str) -> None:
        self.counts[cause] += 1

    def send(self, content: bytes, path: str = PATH, tenant: str = "") -> None:
        question = Question(path, content, tenant=tenant)
        self.near.saw(question, self.matcher.match(question, self.routes))
        assert len(self.later) <= 1
        while self.later:
            self.later.pop()()

    def rest(self) -> None:
        self.now += 60.0


def tools(**changes: Any) -> list[Any]:
    function = {"name": "f", "parameters": {"b": 1, "a": 2}, **changes}
    return [{"type": "function", "function": function}]


CASES: list[tuple[bytes, tuple[str, str, str] | None]] = [
    (body(SYSTEM.replace("11-29", "11-30")), ("p", "timestamp", "systemInstructions")),
    (body(SYSTEM.replace("ask", "try", 9)), ("p", "edited-text", "systemInstructions")),
    (body(SYSTEM.replace("\u002e ", ".\r\n", 1)), ("p", "white-space", "systemInstructions")),
    (body(tools=tools(name="g")), ("p", "other-tools", "toolDefinitions[0]")),
    (body(tools=tools(parameters={"a": 2, "b": 1})), ("p", "key-order", "toolDefinitions[0]")),
    (body(chat_template_kwargs={"a": 1}), ("p", "other-options", "chatTemplateOptions")),
    (body(cache_salt="mine"), None),
    (body(model="n"), ("p", "model", "model")),
    (body(), None),
    (body("Something else altogether, of another desk."), None),
]  # fmt: skip


def test_a_tenant_with_a_salt_misses_what_has_none() -> None:
    other = Payload(systemInstructions="Of another desk.")
    stand = Stand(declared("p", PAYLOAD), declared("q", other, owner="acme", salt="s" * 16))
    stand.send(body(), tenant="acme")
    [found] = stand.near.examples
    assert (found.prefix, found.found.cause, found.found.field) == ("p", "salt", "cacheSaltRef")


@pytest.mark.parametrize(("content", "expected"), CASES)
def test_what_is_found(content: bytes, expected: tuple[str, str, str] | None) -> None:
    stand = Stand(declared("p", PAYLOAD))
    stand.send(content)
    found = [(each.prefix, each.found.cause, each.found.field) for each in stand.near.examples]
    assert found == ([expected] if expected else [])
    assert stand.counts == {expected[1] if expected else "none": 1}


def test_the_nearest_of_many_is_compared_with() -> None:
    teams = [Payload(systemInstructions=f"{SYSTEM} Team {n:03}. Go on.") for n in range(60)]
    known = [declared(f"p{n}", team) for n, team in enumerate(teams)]
    stand = Stand(*known)
    stand.send(body(f"{SYSTEM} Team 031. Go home.", None))
    assert [each.prefix for each in stand.near.examples] == ["p31"]
    stand.rest()
    stand.send(body("It is noon. " + f"{SYSTEM} Team 017. Go on.", None))
    assert stand.near.examples[0].prefix == "p17", "alike but for its beginning"


def test_a_request_that_is_spelled_as_one_of_two_that_mean_the_same_is_no_miss() -> None:
    other = Payload(systemInstructions=SYSTEM.replace("\n", "\r\n") + "\r\n", toolDefinitions="[]")
    alike = Payload(systemInstructions=SYSTEM + "\n", toolDefinitions="[]")
    stand = Stand(declared("old", other), declared("new", alike))
    for system in (other.system, alike.system, SYSTEM + "\r"):
        stand.rest()
        stand.send(body(system, None))
    assert stand.counts == {"none": 2, "line-ends": 1}


def test_examples_and_answers_hold_no_text() -> None:
    stand = Stand(declared("p", PAYLOAD))
    stand.send(body(SYSTEM.replace(SECRET, "a red fox")))
    stand.send(body(documents=[SECRET]))
    told = stand.near.answer()
    shown = json.loads(told.body)
    assert shown["nearMisses"] == [
        {
            "time": "2025-11-30T10:53:20+00:00",
            "prefix": "p",
            "api": PATH,
            "cause": "edited-text",
            "field": "systemInstructions",
            "offset": SYSTEM.index(SECRET),
            "tokensLost": shown["nearMisses"][0]["tokensLost"],
        }
    ]
    assert shown["undeclared"] == {"other-text": 1, "own-template": 1}
    assert SECRET not in f"{told.body!r} {stand.near.examples!r} {stand.near._texts.known!r}"


def test_looks_are_few_and_take_little_of_the_time() -> None:
    stand = Stand(declared("p", PAYLOAD))
    miss = body(SYSTEM.replace("11-29", "11-30"))
    for _ in range(100):
        stand.send(miss)
        stand.now += 0.01
    assert stand.counts.total() == 2, "one each half second"
    stand.rest()
    stand.took = 0.05
    for _ in range(100):
        stand.send(miss)
    assert stand.counts.total() <= 4, "a slow look is followed by a long rest"


def test_equal_parts_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(declared("p", PAYLOAD))
    compare = Mock(wraps=near_miss)
    monkeypatch.setattr(near_misses, "near_miss", compare)
    for content in (body(tools=tools(name="g")), body(tools=tools(name="g"), user="me"), body()):
        stand.send(content)
        stand.rest()
    assert stand.counts == {"other-tools": 2, "none": 1}
    assert compare.call_count == 2
    stand.near.use(Texts((declared("p", PAYLOAD),), HeadIndex()))
    stand.send(body())
    assert compare.call_count == 3


def test_declared_and_undeclared_requests_have_their_own_turns() -> None:
    stand = Stand(declared("p", PAYLOAD))
    for _ in range(5):
        stand.send(body())
    stand.send(body(SYSTEM.replace("11-29", "11-30")))
    assert stand.counts == {"none": 1, "timestamp": 1}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (body("x" * MAX_BODY_BYTES), PATH),
        (body(documents=["x"]), PATH),
        (body(SYSTEM.replace("11-29", "11-30")), "/v1/completions"),
        (body()[:-1], PATH),
    ],
)
def test_what_is_not_looked_at(content: bytes, path: str) -> None:
    stand = Stand(declared("p", PAYLOAD))
    stand.send(content, path)
    assert stand.counts == {}


def test_without_texts_nothing_is_looked_at() -> None:
    stand = Stand()
    stand.send(body(), PATH)
    assert stand.counts == {}


def test_the_last_examples_are_kept() -> None:
    stand = Stand(declared("p", PAYLOAD))
    for number in range(EXAMPLES + 5):
        stand.rest()
        stand.send(body(SYSTEM[:600] + "Z" * number + SYSTEM[600:]))
    assert len(stand.near.examples) == EXAMPLES


def test_only_prefixes_of_the_table_are_named() -> None:
    stand = Stand(declared("p", PAYLOAD))
    stand.near.use(Texts())
    stand.send(body(SYSTEM.replace("11-29", "11-30")))
    assert stand.near.examples == []
