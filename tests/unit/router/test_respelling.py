"""Which requests are respelled, and that the plan is remembered only where it holds."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RoutePrefix
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.rewriting.respelling import RewriteResult, Speller, SpellingPlan

from .samples import MODEL, chat, message, prefix, response

PATH, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PAYLOAD = Payload(
    systemInstructions="Zurück\nzum Ende.",
    toolDefinitions='[{"type":"function","function":'
    '{"name":"f","parameters":{"type":"object","x":1.0}}}]',
)
NFD = unicodedata.normalize("NFD", PAYLOAD.system)
CONTENT = PAYLOAD.digest
DECLARED = prefix(
    fingerprint=payload_fingerprint(MODEL, PAYLOAD), content_digest=CONTENT, normalize=True
)
LEAD = [{"role": "system", "content": NFD}, {"role": "user", "content": "hi"}]


class Texts:
    """Gives the declared text and counts how often it was asked for."""

    def __init__(self, payload: Payload | None = PAYLOAD) -> None:
        self.payload = payload
        self.asked = 0

    def __call__(self, digest: str) -> Payload | None:
        assert digest == CONTENT
        self.asked += 1
        return self.payload


def found(*prefixes: RoutePrefix, kind: MatchKind = MatchKind.FINGERPRINT) -> Match:
    return Match(kind, MODEL, prefixes=prefixes or (DECLARED,))


def plan(body: bytes, speller: Speller | None = None, path: str = PATH) -> SpellingPlan:
    asked = Speller(Texts(), 8) if speller is None else speller
    return asked.plan(Question(path, body), found())


def test_another_spelling_is_rewritten() -> None:
    for path, body in (
        (PATH, chat(messages=LEAD)),
        (MESSAGES, message(system=NFD)),
        (RESPONSES, response(instructions=NFD)),
    ):
        made = plan(body, path=path)
        assert made.result is None
        assert made.prefix == DECLARED
        assert made.respelling is not None
        changed = made.respelling.apply(body)
        assert changed != body
        assert plan(changed, path=path) == SpellingPlan(
            result=RewriteResult.AS_DECLARED, prefix=DECLARED
        )


def test_nothing_is_planned_without_a_prefix_that_wants_it() -> None:
    speller, question = Speller(Texts(), 8), Question(PATH, chat(messages=LEAD))
    plain = DECLARED.model_copy(update={"normalize": False})
    for match in (
        found(plain),
        found(kind=MatchKind.HEADER),
        replace(found(), prefixes=(), kind=MatchKind.UNDECLARED),
    ):
        assert speller.plan(question, match) == SpellingPlan()
    assert speller.plan(question, found(plain, DECLARED)).respelling is not None


def test_without_the_text_nothing_is_rewritten_until_it_comes() -> None:
    texts = Texts(None)
    speller = Speller(texts, 8)
    assert plan(chat(messages=LEAD), speller) == SpellingPlan(result=RewriteResult.NO_CONTENT)
    texts.payload = PAYLOAD
    assert plan(chat(messages=LEAD), speller).respelling is not None


def test_a_text_is_read_once_and_forgotten_with_its_prefix() -> None:
    texts = Texts()
    speller = Speller(texts, 8)
    plan(chat(messages=LEAD), speller)
    plan(chat("else", messages=LEAD), speller)
    speller.retain({CONTENT})
    plan(chat(messages=LEAD), speller)
    assert texts.asked == 1
    speller.retain(())
    plan(chat(messages=LEAD), speller)
    assert texts.asked == 2


@pytest.mark.parametrize("tools", ["no json", "[{}]"])
def test_a_text_that_can_not_work_is_none(tools: str) -> None:
    broken = Texts(Payload(systemInstructions=PAYLOAD.system, toolDefinitions=tools))
    made = plan(chat(messages=LEAD), Speller(broken, 8))
    assert made == SpellingPlan(result=RewriteResult.NO_CONTENT)


def test_what_stands_elsewhere_in_one_body_says_nothing_of_others() -> None:
    speller = Speller(Texts(), 8)
    odd = chat(messages=LEAD)[:-1] + b',"x":{"y":1,"y":2}}'
    assert plan(odd, speller).result is RewriteResult.NOT_STRICT
    assert plan(chat(messages=LEAD), speller).respelling is not None
    escaped = chat(messages=LEAD)[:-1] + b',"\\u0078":1,"x":2}'
    assert plan(escaped, speller).result is RewriteResult.NOT_STRICT
    assert plan(chat(messages=LEAD), speller).respelling is not None


def test_the_memory_is_bounded() -> None:
    speller = Speller(Texts(), 2)
    for space in range(5):
        body = chat(messages=LEAD).replace(b'"role"', b'"role"' + b" " * space)
        assert plan(body, speller).respelling is not None
    assert len(speller) == 2
