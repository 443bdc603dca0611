"""What is changed of a body in all: its spelling, its cache salt, or both."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.rewriting.respelling import RewriteResult, Speller
from promptprefix_router.rewriting.rewriter import RewritePlan, Rewriter, TooLongError
from promptprefix_router.rewriting.salt_field import UnreadableError

from .samples import DIGEST, MODEL, chat, prefix

PATH = "/v1/chat/completions"
SALT = "the-salt-of-a-tenant"
LIMIT = 4096
PAYLOAD = Payload(systemInstructions="Zurück\nzum Ende.")
NFD = unicodedata.normalize("NFD", PAYLOAD.system)
DECLARED = prefix(
    fingerprint=payload_fingerprint(MODEL, PAYLOAD),
    content_digest=PAYLOAD.digest,
    normalize=True,
    token_digests=(DIGEST,),
)
RESULTS = tuple[RewriteResult, ...]


def body(text: str = NFD, **more: Any) -> bytes:
    turns = [{"role": "system", "content": text}, {"role": "user", "content": "hi"}]
    whole = {**json.loads(chat(messages=turns, **more))}
    del whole["tools"]
    return json.dumps(whole, ensure_ascii=False).encode()


def planned(body: bytes, salt: str = "", limit: int = LIMIT) -> RewritePlan:
    match = Match(MatchKind.FINGERPRINT, MODEL, prefixes=(DECLARED,), salt=salt)
    rewriter = Rewriter(Speller(lambda _digest: PAYLOAD, 8), limit)
    return rewriter.plan(Question(PATH, body), match)


@pytest.mark.parametrize(
    ("text", "own", "salt", "manner", "results"),
    [
        (NFD, None, "", "text", (RewriteResult.REWRITTEN,)),
        (NFD, "x", "", "text", (RewriteResult.REWRITTEN, RewriteResult.UNSALTED)),
        (NFD, None, SALT, "salt", (RewriteResult.REWRITTEN, RewriteResult.SALTED)),
        (NFD, SALT, SALT, "text", (RewriteResult.REWRITTEN,)),
        (PAYLOAD.system, "x", "", "text", (RewriteResult.UNSALTED,)),
        (PAYLOAD.system, None, SALT, "salt", (RewriteResult.SALTED,)),
        (PAYLOAD.system, "x", SALT, "salt", (RewriteResult.SALTED,)),
    ],
)
def test_spelling_and_salt(
    text: str, own: str | None, salt: str, manner: str, results: RESULTS
) -> None:
    sent = body(text) if own is None else body(text, cache_salt=own)
    rewriting = planned(sent, salt).rewriting
    assert rewriting is not None
    assert rewriting.manner == manner
    made = rewriting.apply(sent, LIMIT)
    assert made.results == results
    found = json.loads(made.body)
    assert found["messages"][0]["content"] == PAYLOAD.system
    assert found.get("cache_salt", "") == salt
    assert planned(made.body, salt).rewriting is None, "twice is once"


@pytest.mark.parametrize(
    ("sent", "salt"),
    [
        (body(PAYLOAD.system), ""),
        (body(PAYLOAD.system, cache_salt=SALT), SALT),
        (body(PAYLOAD.system, metadata={"cache_salt": "theirs"}), ""),
        (b"{", ""),
        (b'{"cache_salt"', ""),
        (b"\xff\0", ""),
        (b"", ""),
        (b"", SALT),
    ],
)
def test_what_is_right_or_no_object_stays(sent: bytes, salt: str) -> None:
    assert planned(sent, salt).rewriting is None


def test_a_body_that_was_cut_stays() -> None:
    question = Question(PATH, b'{"cache_salt":', partial=True)
    assert Rewriter().plan(question, Match(MatchKind.PARTIAL)) == RewritePlan()
    with pytest.raises(TooLongError):
        Rewriter().plan(question, Match(MatchKind.PARTIAL, salt=SALT))


@pytest.mark.parametrize("sent", [b" ", b"[]", b'{"a":1', b"{}{}", b"[" * 100_000])
def test_a_salt_can_not_be_put_into_what_is_no_object(sent: bytes) -> None:
    with pytest.raises(UnreadableError):
        planned(sent, SALT)


def test_the_limit_holds_for_new_bodies() -> None:
    sent = body(PAYLOAD.system)
    with pytest.raises(TooLongError):
        planned(sent, SALT, len(sent) + 8)
    sent = body(NFD.replace("\n", "\r"))
    rewriting = planned(sent).rewriting
    assert rewriting is not None
    assert rewriting.apply(sent, len(sent)).results == (RewriteResult.REWRITTEN,)
    short = len(rewriting.apply(sent, LIMIT).body) - 1
    kept = rewriting.apply(sent, short)
    assert (kept.body, kept.results) == (sent, (RewriteResult.TOO_LONG,))


def test_without_texts_salts_are_set_too() -> None:
    rewriting = Rewriter().plan(Question(PATH, body()), Match(MatchKind.UNDECLARED, salt=SALT))
    assert rewriting.rewriting is not None
    assert SALT.encode() in rewriting.rewriting.apply(body(), LIMIT).body


def test_pods_with_the_very_bytes_are_looked_for() -> None:
    match = Match(MatchKind.FINGERPRINT, MODEL, frozenset({"d1", "d2"}), prefixes=(DECLARED,))
    assert planned(body()).narrowed(match).digests == {DIGEST}
    assert RewritePlan().narrowed(match).digests == {"d1", "d2"}


def test_salts_do_not_show() -> None:
    assert SALT not in repr(planned(body(), SALT))
