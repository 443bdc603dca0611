"""What a request stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptprefix.fingerprint import Frame, payload_fingerprint, system_bytes
from promptprefix.shapes.chat import CHAT
from promptprefix.wire import RoutePrefix
from promptprefix_router.matching.heads import DeclaredHead, HeadIndex, opening
from promptprefix_router.matching.matcher import (
    Match,
    Matcher,
    MatchKind,
    Question,
)
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.request_head import DeclaringReader

from .samples import DIGEST, MODEL, PAYLOAD, chat, endpoint, message, prefix, response, routes

PATH = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
INLINE = [{"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}]
DIGESTS = frozenset({DIGEST})
TABLE = routes(endpoint(1), prefixes=(prefix(id="u-1"),))
FOUND = Match(MatchKind.FINGERPRINT, MODEL, DIGESTS, ("u-1",))
NAMED = Match(MatchKind.HEADER, MODEL, DIGESTS, ("u-1",))


def undeclared(cause: str = "other-text", model: str = MODEL) -> Match:
    return Match(MatchKind.UNDECLARED, model, cause=cause)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(PATH, chat()), FOUND),
        (Question(PATH, chat(), prefix_name="p"), NAMED),
        (Question(PATH, chat(tools=[]), prefix_name="p"), NAMED),
        (Question(PATH, chat(), prefix_name="unknown"), FOUND),
        (Question(PATH, chat(model="x"), prefix_name="p"), undeclared("other-model", "x")),
        (Question(PATH, chat(tools=[])), undeclared()),
        (Question(PATH, chat(cache_salt="mine")), FOUND),
        (Question(PATH, chat()[:-1] + b',"model":"m"}'), undeclared("not-canonical")),
        (Question(PATH, chat()[:-1] + b',"x":{"model":"m"}}'), FOUND),
        (Question(PATH, chat()[:-1] + b',"tools":[]}'), undeclared("not-canonical")),
        (Question(PATH, chat()[:-1]), Match(MatchKind.MALFORMED)),
        (Question("/v1/completions", b'{"model":"m","prompt":"x"}'), undeclared("other-api")),
        (Question("/v1/completions", b'{"model":"m","messages":3}'), undeclared("other-api")),
        (Question(MESSAGES, message()), FOUND),
        (Question(MESSAGES, message(), prefix_name="p"), NAMED),
        (Question(MESSAGES, message(tools=[]), prefix_name="p"), NAMED),
        (Question(MESSAGES, message(tools=[])), undeclared("empty-tools")),
        (Question(MESSAGES, message(messages=INLINE)), undeclared("inline-system")),
        (Question(MESSAGES, message(thinking={"type": "disabled"})), undeclared("reasoning")),
        (Question(MESSAGES, message()[:-1] + b',"tools":null}'), undeclared("not-canonical")),
        (
            Question(MESSAGES, message()[:-1] + b',"sy\\u0073tem":0}'),
            undeclared("not-canonical"),
        ),
        (Question(MESSAGES, message()[:-1] + b',"x":"tools"}'), FOUND),
        (Question(MESSAGES, chat()), undeclared("inline-system")),
        (Question(MESSAGES, chat(), prefix_name="p"), NAMED),
        (Question(MESSAGES, b"\xff"), Match(MatchKind.MALFORMED)),
        (Question(f"{MESSAGES}/count_tokens", message()), undeclared("other-api")),
        (Question(RESPONSES, response()), FOUND),
        (Question(RESPONSES, response([{"role": "user", "content": "hi"}])), FOUND),
        (Question(RESPONSES, response(), prefix_name="p"), NAMED),
        (Question(RESPONSES, response(tools=[])), undeclared()),
        (Question(RESPONSES, response(previous_response_id="r")), undeclared("stored-context")),
        (Question(RESPONSES, response(previous_response_id=None)), FOUND),
        (Question(RESPONSES, response(truncation="auto")), undeclared("truncated")),
        (
            Question(RESPONSES, response()[:-1] + b',"instructions":""}'),
            undeclared("not-canonical"),
        ),
        (Question(RESPONSES, chat()), Match(MatchKind.MALFORMED)),
        (Question(PATH, response()), Match(MatchKind.MALFORMED)),
        (Question(PATH, message()), undeclared()),
        (Question(PATH, chat(reasoning_effort="low")), undeclared()),
        (
            Question(PATH, chat(kv_transfer_params={"prompt_token_ids": [1]})),
            undeclared("own-tokens"),
        ),
        (Question(PATH, chat(kv_transfer_params={"remote_port": 1})), FOUND),
        (Question(PATH, chat()[:20], partial=True), Match(MatchKind.PARTIAL, MODEL)),
        (Question(PATH, b'{"model":"zz","', partial=True), Match(MatchKind.PARTIAL)),
        (Question(PATH, b"", partial=True, prefix_name="p"), NAMED),
    ],
)
def test_the_table(question: Question, expected: Match) -> None:
    assert Matcher(FingerprintMemo(8)).match(question, TABLE) == expected


def test_both_versions_of_a_rollout_are_matched_by_name() -> None:
    table = routes(prefixes=(prefix(), prefix(fingerprint="pp1:x", token_digests=("d2",))))
    match = Matcher(FingerprintMemo(8)).match(Question(PATH, chat(), prefix_name="p"), table)
    assert match.digests == {DIGEST, "d2"}


SALT, SALT_B = "salt-of-tenant-a", "salt-of-tenant-b"
SALTED = prefix(salt=SALT, token_digests=("salted",))
OURS = prefix("ours", owner="a", salt=SALT, token_digests=("ours",))
PLAIN = prefix("plain", owner="a", token_digests=("plain",))
THEIRS = prefix("theirs", owner="b", salt=SALT_B, token_digests=("theirs",))
ELSE = {"fingerprint": "pp1:x", "token_digests": ("else",)}


@pytest.mark.parametrize(
    ("prefixes", "question", "digests", "salt"),
    [
        ((SALTED,), Question(PATH, chat()), {"salted"}, SALT),
        ((SALTED,), Question(PATH, chat(cache_salt="mine")), {"salted"}, SALT),
        ((SALTED,), Question(PATH, chat(cache_salt=7)), {"salted"}, SALT),
        ((SALTED,), Question(PATH, chat(), prefix_name="p"), {"salted"}, SALT),
        ((SALTED,), Question(MESSAGES, message()), {"salted"}, SALT),
        ((SALTED,), Question(RESPONSES, response()), {"salted"}, SALT),
        ((SALTED,), Question("/v1/completions", b'{"model":"m"}', prefix_name="p"), {"salted"},
         SALT),
        ((SALTED,), Question(PATH, chat()[:40], True, "p"), set(), ""),
        ((SALTED,), Question(PATH, chat("x", tools=[])), set(), ""),
        ((SALTED, prefix()), Question(PATH, chat()), {"salted"}, SALT),
        ((prefix(), SALTED), Question(PATH, chat()), {DIGEST}, ""),
        ((prefix("o"), SALTED), Question(PATH, chat()), {DIGEST}, ""),
        ((prefix("q"), SALTED), Question(PATH, chat()), {"salted"}, SALT),
        ((OURS,), Question(PATH, chat(), tenant="a"), {"ours"}, SALT),
        ((OURS,), Question(PATH, chat(), tenant="a", prefix_name="ours"), {"ours"}, SALT),
        ((OURS,), Question(PATH, chat()), set(), ""),
        ((OURS,), Question(PATH, chat(), prefix_name="ours"), set(), ""),
        ((OURS,), Question(PATH, chat(), tenant="b"), set(), ""),
        ((OURS,), Question(PATH, chat(cache_salt=SALT), tenant="b"), set(), ""),
        ((OURS,), Question(PATH, chat(cache_salt=SALT), tenant="b", prefix_name="ours"), set(), ""),
        ((OURS, THEIRS), Question(PATH, chat(), tenant="a"), {"ours"}, SALT),
        ((OURS, THEIRS), Question(PATH, chat(), tenant="b"), {"theirs"}, SALT_B),
        ((prefix(), OURS), Question(PATH, chat(), tenant="a"), {"ours"}, SALT),
        ((prefix(), OURS), Question(PATH, chat()), {DIGEST}, ""),
        ((prefix(), OURS), Question(PATH, chat(), tenant="c"), {DIGEST}, ""),
        ((prefix(), OURS), Question(PATH, chat(), tenant="a", prefix_name="p"), {"ours"}, SALT),
        # A tenant with a salt never goes without: what has none is no use to it.
        ((prefix(), prefix("z", owner="a", salt=SALT, **ELSE)),
         Question(PATH, chat(), tenant="a"), set(), SALT),
        ((PLAIN, prefix("z", owner="a", salt=SALT, **ELSE)),
         Question(PATH, chat(), tenant="a"), set(), SALT),
        ((PLAIN,), Question(PATH, chat(), tenant="a"), {"plain"}, ""),
        ((OURS,), Question(PATH, chat(tools=[]), tenant="a"), set(), SALT),
        ((OURS,), Question(PATH, b"", tenant="a"), set(), SALT),
        ((OURS,), Question(PATH, chat()[:40], True, tenant="a"), set(), SALT),
        ((OURS,), Question("/v1/embeddings", b'{"model":"m"}', tenant="a"), set(), SALT),
        # An earlier version counts for nothing, two salts of one tenant for none.
        ((OURS, prefix("ours", owner="a", salt="old", token_digests=("old",))),
         Question(PATH, chat(), tenant="a"), {"ours"}, SALT),
        ((OURS, prefix("ours", owner="a", salt="old", **ELSE)),
         Question(PATH, chat(tools=[]), tenant="a"), set(), SALT),
        ((OURS, prefix("z", owner="a", salt="two", **ELSE)),
         Question(PATH, chat(tools=[]), tenant="a"), set(), ""),
    ],
)  # fmt: skip
def test_tenants_and_salts(
    prefixes: tuple[RoutePrefix, ...], question: Question, digests: set[str], salt: str
) -> None:
    match = Matcher(FingerprintMemo(8)).match(question, routes(prefixes=prefixes))
    assert (match.digests, match.salt) == (digests, salt)


def test_why_a_tenants_request_is_undeclared() -> None:
    table = routes(prefixes=(prefix(), OURS, prefix("z", owner="b", salt=SALT_B, **ELSE)))
    matcher = Matcher(FingerprintMemo(8))

    def cause(tenant: str, **changes: Any) -> str:
        return matcher.match(Question(PATH, chat(**changes), tenant=tenant), table).cause

    assert cause("b") == "other-salt"
    assert cause("a", tools=[]) == "other-text"
    only_ours = routes(prefixes=(OURS,))
    assert matcher.match(Question(PATH, chat()), only_ours).cause == "other-tenant"


@pytest.mark.parametrize(
    ("prefixes", "conflicts"),
    [
        ((), 0),
        ((SALTED, OURS, THEIRS, prefix("x", **ELSE)), 0),
        ((OURS, prefix("ours", owner="a", salt="old")), 0),
        ((SALTED, prefix("q")), 1),
        ((OURS, prefix("z", owner="a", salt="two", **ELSE)), 1),
        ((OURS, prefix("z", owner="a", **ELSE)), 1),
        ((OURS, prefix("z", owner="a", salt="two")), 2),
    ],
)
def test_salts_that_differ_are_counted(prefixes: tuple[RoutePrefix, ...], conflicts: int) -> None:
    assert routes(prefixes=prefixes).salt_conflicts == conflicts


def test_salts_are_not_shown() -> None:
    table = routes(prefixes=(SALTED, OURS))
    match = Matcher(FingerprintMemo(8)).match(Question(PATH, chat()), table)
    assert match.salt == SALT
    assert SALT not in f"{match!r} {table!r} {SALTED!r}"


TOOL = {"type": "function", "function": {"name": "f"}, "input_schema": {}, "name": "f"}
BOTH = chat(messages=[{"role": "user", "content": "hi"}], tools=[TOOL])


@pytest.mark.parametrize("paths", [(PATH, MESSAGES), (MESSAGES, PATH)])
def test_the_memo_tells_apis_apart(paths: tuple[str, str]) -> None:
    """A chat with a tool that the Messages API takes for one of its built-in ones."""
    declared = FingerprintMemo(1).read(DeclaringReader(CHAT).read(BOTH))[0].fingerprint
    table, memo = routes(prefixes=(prefix(fingerprint=declared),)), FingerprintMemo(8)
    matcher = Matcher(memo)
    kinds = {path: matcher.match(Question(path, BOTH), table).kind for path in paths}
    assert kinds == {PATH: MatchKind.FINGERPRINT, MESSAGES: MatchKind.UNDECLARED}
    assert (memo.hits, memo.misses) == (0, 2)


def test_nothing_is_computed_for_a_model_without_prefixes() -> None:
    memo = FingerprintMemo(8)
    Matcher(memo).match(Question(PATH, chat(model="x")), TABLE)
    assert (memo.hits, memo.misses) == (0, 0)


BEGUN = "You are a bot. It is noon."
SHORTER = "You are"


def head_index(*texts: str, owner: str = "") -> HeadIndex:
    """Return an index of texts that are declared with the same tools."""
    frame = Frame.of(MODEL, PAYLOAD.tools, {})
    systems = map(system_bytes, texts)
    made = (DeclaredHead.of(frame.digest, owner, opening(s), frame.fingerprint(s)) for s in systems)
    return HeadIndex(head for head in made if head is not None)


def shorter(**changes: Any) -> RoutePrefix:
    payload = PAYLOAD.model_copy(update={"systemInstructions": SHORTER})
    fields = {"fingerprint": payload_fingerprint(MODEL, payload), "token_digests": ("d2",)}
    return prefix("shorter", id="u-2", tokens=2, **{**fields, **changes})


def begun(text: str = BEGUN, **changes: Any) -> bytes:
    messages = [{"role": "system", "content": text}, USER]
    return chat(**{"messages": messages, **changes})


USER = {"role": "user", "content": "hi"}
HEAD = Match(MatchKind.HEAD, MODEL, DIGESTS, ("u-1",), tokens=9)
LESS = Match(MatchKind.HEAD, MODEL, frozenset({"d2"}), ("u-2",), tokens=2)
PARTS = [{"type": "text", "text": PAYLOAD.system}, {"type": "text", "text": "It is noon."}]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(PATH, begun()), HEAD),
        (Question(PATH, begun(messages=[{"role": "developer", "content": PARTS}])), HEAD),
        (Question(PATH, begun(PAYLOAD.system + "\r\nNow.")), HEAD),
        (Question(PATH, begun("You are a cat.")), LESS),
        (Question(PATH, begun(SHORTER)), replace(LESS, kind=MatchKind.FINGERPRINT)),
        (Question(PATH, begun("You")), undeclared()),
        (Question(PATH, begun(tools=[])), undeclared()),
        (Question(PATH, begun(model="x")), undeclared("other-model", "x")),
        (Question(PATH, begun(chat_template_kwargs={"a": 1})), undeclared()),
        (Question(PATH, begun(documents=["x"])), undeclared("own-template")),
        (Question(PATH, begun(cache_salt="mine")), HEAD),
        (Question(PATH, begun(), tenant="a"), HEAD),
        (Question(PATH, begun()[:-1] + b',"tools":[]}'), undeclared("not-canonical")),
        (Question(MESSAGES, message(system=BEGUN)), HEAD),
        (Question(MESSAGES, message(system=[PARTS[0], {"type": "text", "text": "!"}])), HEAD),
        (Question(MESSAGES, message(system="You are a cat.")), LESS),
        (Question(RESPONSES, response(instructions=BEGUN)), HEAD),
        (Question(RESPONSES, response(instructions=BEGUN, tools=[])), undeclared()),
    ],
)
def test_a_text_with_a_tail_matches_the_longest_declared_head(
    question: Question, expected: Match
) -> None:
    table = routes(endpoint(1), prefixes=(prefix(id="u-1", tokens=9), shorter()))
    matcher = Matcher(FingerprintMemo(8))
    assert matcher.match(question, table).kind in (MatchKind.UNDECLARED, MatchKind.FINGERPRINT)
    matcher.use(head_index(PAYLOAD.system, SHORTER))
    for _ in range(2):
        assert matcher.match(question, table) == expected, "known from the memo or not"


def test_a_head_counts_within_its_tenant() -> None:
    ours = prefix("ours", id="u-3", owner="a", salt=SALT)
    table = routes(prefixes=(prefix(id="u-1"), ours, shorter()))
    matcher = Matcher(FingerprintMemo(8))
    matcher.use(head_index(PAYLOAD.system))

    def match(tenant: str) -> Match:
        return matcher.match(Question(PATH, begun(), tenant=tenant), table)

    assert (match("").ids, match("").salt) == (("u-1",), "")
    assert (match("a").ids, match("a").salt) == ((), SALT), "what has no salt is no use to it"
    matcher.use(head_index(PAYLOAD.system, owner="a"))
    assert (match("a").ids, match("a").salt) == (("u-3",), SALT)
    assert (match("").ids, match("b").ids) == ((), ())


def test_a_head_that_left_the_table_matches_nothing() -> None:
    matcher = Matcher(FingerprintMemo(8))
    matcher.use(head_index(PAYLOAD.system, SHORTER))
    table = routes(prefixes=(shorter(),))
    assert matcher.match(Question(PATH, begun()), table) == undeclared()
