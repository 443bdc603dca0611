"""What a request stands for."""

from __future__ import annotations

import pytest

from promptprefix.shapes.chat import CHAT
from promptprefix.wire import RoutePrefix
from promptprefix_router.matching import (
    FingerprintMemo,
    Match,
    Matcher,
    MatchKind,
    Question,
)
from promptprefix_router.request_head import DeclaringReader

from .samples import DIGEST, MODEL, chat, endpoint, message, prefix, response, routes

PATH = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
INLINE = [{"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}]
DIGESTS = frozenset({DIGEST})
TABLE = routes(endpoint(1), prefixes=(prefix(id="u-1"),))
FOUND = Match(MatchKind.FINGERPRINT, MODEL, DIGESTS, ("u-1",))
NAMED = Match(MatchKind.HEADER, MODEL, DIGESTS, ("u-1",))
UNDECLARED = Match(MatchKind.UNDECLARED, MODEL)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(PATH, chat()), FOUND),
        (Question(PATH, chat(), prefix_name="p"), NAMED),
        (Question(PATH, chat(tools=[]), prefix_name="p"), NAMED),
        (Question(PATH, chat(), prefix_name="unknown"), FOUND),
        (Question(PATH, chat(model="x"), prefix_name="p"), Match(MatchKind.UNDECLARED, "x")),
        (Question(PATH, chat(tools=[])), UNDECLARED),
        (Question(PATH, chat(cache_salt="mine")), UNDECLARED),
        (Question(PATH, chat()[:-1] + b',"model":"m"}'), UNDECLARED),
        (Question(PATH, chat()[:-1] + b',"x":{"model":"m"}}'), FOUND),
        (Question(PATH, chat()[:-1] + b',"tools":[]}'), UNDECLARED),
        (Question(PATH, chat()[:-1]), Match(MatchKind.MALFORMED)),
        (Question("/v1/completions", b'{"model":"m","prompt":"x"}'), UNDECLARED),
        (Question("/v1/completions", b'{"model":"m","messages":3}'), UNDECLARED),
        (Question(MESSAGES, message()), FOUND),
        (Question(MESSAGES, message(), prefix_name="p"), NAMED),
        (Question(MESSAGES, message(tools=[]), prefix_name="p"), NAMED),
        (Question(MESSAGES, message(tools=[])), UNDECLARED),
        (Question(MESSAGES, message(messages=INLINE)), UNDECLARED),
        (Question(MESSAGES, message(thinking={"type": "disabled"})), UNDECLARED),
        (Question(MESSAGES, message()[:-1] + b',"tools":null}'), UNDECLARED),
        (Question(MESSAGES, message()[:-1] + b',"sy\\u0073tem":null}'), UNDECLARED),
        (Question(MESSAGES, message()[:-1] + b',"x":"tools"}'), FOUND),
        (Question(MESSAGES, chat()), UNDECLARED),
        (Question(MESSAGES, chat(), prefix_name="p"), NAMED),
        (Question(MESSAGES, b"\xff"), Match(MatchKind.MALFORMED)),
        (Question(f"{MESSAGES}/count_tokens", message()), UNDECLARED),
        (Question(RESPONSES, response()), FOUND),
        (Question(RESPONSES, response([{"role": "user", "content": "hi"}])), FOUND),
        (Question(RESPONSES, response(), prefix_name="p"), NAMED),
        (Question(RESPONSES, response(tools=[])), UNDECLARED),
        (Question(RESPONSES, response(previous_response_id="r")), UNDECLARED),
        (Question(RESPONSES, response(previous_response_id=None)), FOUND),
        (Question(RESPONSES, response(truncation="auto")), UNDECLARED),
        (Question(RESPONSES, response()[:-1] + b',"instructions":""}'), UNDECLARED),
        (Question(RESPONSES, chat()), Match(MatchKind.MALFORMED)),
        (Question(PATH, response()), Match(MatchKind.MALFORMED)),
        (Question(PATH, message()), UNDECLARED),
        (Question(PATH, chat(reasoning_effort="low")), UNDECLARED),
        (Question(PATH, chat(kv_transfer_params={"prompt_token_ids": [1]})), UNDECLARED),
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


SALT = "salt-of-tenant-a"
SALTED = prefix(salt=SALT, token_digests=("salted",))


@pytest.mark.parametrize(
    ("prefixes", "question", "digests"),
    [
        ((SALTED,), Question(PATH, chat(cache_salt=SALT)), {"salted"}),
        ((SALTED,), Question(PATH, chat(cache_salt=SALT), prefix_name="p"), {"salted"}),
        ((SALTED,), Question("/v1/messages", chat(cache_salt=SALT), prefix_name="p"), {"salted"}),
        ((SALTED, prefix()), Question(PATH, chat(cache_salt=SALT)), {"salted"}),
        ((SALTED, prefix()), Question(PATH, chat()), {DIGEST}),
        ((SALTED, prefix()), Question(PATH, chat(cache_salt=None), prefix_name="p"), {DIGEST}),
        ((SALTED,), Question(PATH, chat()), set()),
        ((SALTED,), Question(PATH, chat(), prefix_name="p"), set()),
        ((SALTED,), Question(PATH, chat(cache_salt=f"{SALT}x")), set()),
        ((SALTED,), Question(PATH, chat(cache_salt="")), set()),
        ((SALTED,), Question(PATH, chat(cache_salt=7)), set()),
        ((prefix(),), Question(PATH, chat(cache_salt="")), set()),
        ((SALTED,), Question(MESSAGES, chat(), prefix_name="p"), set()),
        ((SALTED,), Question(MESSAGES, message(cache_salt=SALT)), {"salted"}),
        ((SALTED,), Question(MESSAGES, message()), set()),
        ((SALTED, prefix()), Question(MESSAGES, message()), {DIGEST}),
        ((SALTED,), Question(RESPONSES, response(cache_salt=SALT)), {"salted"}),
        ((SALTED,), Question(RESPONSES, response()), set()),
        ((SALTED, prefix()), Question(RESPONSES, response(cache_salt="")), set()),
        ((SALTED,), Question(PATH, chat(cache_salt=SALT)[:40], True, "p"), set()),
        ((SALTED,), Question(PATH, chat(user=f'"cache_salt": "{SALT}"')), set()),
        (
            (SALTED,),
            Question(PATH, chat(cache_salt="x")[:-1] + f',"cache_salt":"{SALT}"}}'.encode()),
            set(),
        ),
    ],
)
def test_a_request_matches_what_is_salted_alike(
    prefixes: tuple[RoutePrefix, ...], question: Question, digests: set[str]
) -> None:
    match = Matcher(FingerprintMemo(8)).match(question, routes(prefixes=prefixes))
    assert match.digests == digests


def test_salts_are_not_shown() -> None:
    table = routes(prefixes=(SALTED,))
    match = Matcher(FingerprintMemo(8)).match(Question(PATH, chat(cache_salt=SALT)), table)
    assert SALT not in f"{match!r} {table!r} {SALTED!r}"


TOOL = {"type": "function", "function": {"name": "f"}, "input_schema": {}, "name": "f"}
BOTH = chat(messages=[{"role": "user", "content": "hi"}], tools=[TOOL])


@pytest.mark.parametrize("paths", [(PATH, MESSAGES), (MESSAGES, PATH)])
def test_the_memo_tells_apis_apart(paths: tuple[str, str]) -> None:
    """A chat with a tool that the Messages API takes for one of its built-in ones."""
    declared = DeclaringReader(CHAT).read(BOTH).fingerprint()
    table, memo = routes(prefixes=(prefix(fingerprint=declared),)), FingerprintMemo(8)
    matcher = Matcher(memo)
    kinds = {path: matcher.match(Question(path, BOTH), table).kind for path in paths}
    assert kinds == {PATH: MatchKind.FINGERPRINT, MESSAGES: MatchKind.UNDECLARED}
    assert (memo.hits, memo.misses) == (0, 2)


def test_nothing_is_computed_for_a_model_without_prefixes() -> None:
    memo = FingerprintMemo(8)
    Matcher(memo).match(Question(PATH, chat(model="x")), TABLE)
    assert (memo.hits, memo.misses) == (0, 0)


def test_the_memo_remembers_and_stays_small() -> None:
    memo = FingerprintMemo(2)
    read_chat = DeclaringReader(CHAT).read
    heads = [read_chat(chat(chat_template_kwargs={"n": n})) for n in range(3)]
    first = memo.fingerprint(heads[0])
    assert memo.fingerprint(heads[0]) == first
    memo.fingerprint(heads[1])
    memo.fingerprint(heads[0])
    memo.fingerprint(heads[2])
    assert len(memo) == 2
    assert (memo.hits, memo.misses) == (2, 3)
    memo.fingerprint(heads[0])
    assert memo.hits == 3
    memo.fingerprint(heads[1])
    assert memo.misses == 4


def test_the_memo_also_remembers_what_has_no_fingerprint() -> None:
    memo = FingerprintMemo(2)
    head = DeclaringReader(CHAT).read(chat(tools=[2**60]))
    assert memo.fingerprint(head) == memo.fingerprint(head) == ""
    assert (memo.hits, memo.misses) == (1, 1)
