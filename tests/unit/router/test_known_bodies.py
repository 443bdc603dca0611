"""Nothing that a client puts into a body becomes possible because one like it was seen before."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.pin_command import XARG
from promptprefix_router.choosing.prompt_chain import read_chain
from promptprefix_router.command_guard import CARRIERS, carries_command
from promptprefix_router.matching.matcher import Match, Matcher, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.rewriting.rewriter import Rewriter, Rewriting
from promptprefix_router.rewriting.salt_field import UnreadableError
from promptprefix_router.traces import Traces

from .samples import MODEL, PAYLOAD, chat, prefix, response, routes

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SALT = "salt-of-tenant-a"
TABLE = routes(prefixes=(prefix(), prefix("ours", owner="a", salt=SALT)))
WRITER = Rewriter()
TURN = "] \\ here"
SYSTEM = {"role": "system", "content": PAYLOAD.system}
FIRST_TURNS = [SYSTEM, {"role": "user", "content": TURN}]

SEEN = (
    (CHAT, chat(TURN)),
    (CHAT, chat(TURN, stop=["x"], vllm_xargs={"session": "s"})),
    (CHAT, json.dumps({"cache_salt": "own", **json.loads(chat(TURN))}).encode()),
    (RESPONSES, response(FIRST_TURNS, instructions=None, include=["x"])),
)
"""Bodies whose openings are remembered, with the turns in the middle and at the end."""

COMMAND = b'"vllm_xargs":{"promptprefix":"x"}'
OUT = b'"}],%s,"x":[{"y":"'
"""Closes the turns, and opens another array that ends as they do."""
SMUGGLED = (
    OUT % COMMAND,
    OUT % b'"vllm_xargs":{"p\\u0072omptprefix":"x"}',
    OUT % b'"kv_transfer_params":{"promptprefix":"x"}',
    OUT % b'"cache_salt":"s"',
    OUT % b'"cache\\u005fsalt":"s"',
    OUT % b'"messages":[]',
    OUT % b'"tools":[]',
    (OUT % COMMAND).decode().encode("utf-16-le"),
    b"{%s}" % COMMAND,
    b'"},{"cache_salt":"s',
    b"promptprefix",
    b"cache_salt",
    b"\0",
    b"\xff\xfe",
    b"\\u0022}],",
    b'"}]}',
    b'"},{"a":"',
    b"\\",
    b'"',
)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON, names that stand twice included."""


def remembering() -> Matcher:
    """Return a matcher after it has seen all of `SEEN`."""
    matcher = Matcher(FingerprintMemo(64))
    for path, body in SEEN:
        matcher.match(Question(path, body), TABLE)
        assert Question(path, body).known is not None
    return matcher


def unknown(question: Question) -> Question:
    """Return the same question where nothing like it was seen."""
    found = Question(question.path, question.body, tenant=question.tenant)
    object.__setattr__(found, "known", None)
    object.__setattr__(found, "traces", Traces.of(question.body))
    return found


def planned(question: Question, match: Match) -> Rewriting | str | None:
    """Return what is to come of the body."""
    try:
        return WRITER.plan(question, match).rewriting
    except UnreadableError:
        return "refused"


def read(body: bytes) -> _Pairs | None:
    """Return the object that an engine reads, None if it refuses the body."""
    try:
        found = json.loads(body, object_pairs_hook=_Pairs)
    except ValueError:
        return None
    return found if isinstance(found, _Pairs) else None


def commands(found: _Pairs) -> bool:
    """Return whether an engine gets a command of ours."""
    carriers = [value for name, value in found if name in CARRIERS and isinstance(value, _Pairs)]
    return any(name == XARG for value in carriers for name, _ in value)


@given(
    seen=st.sampled_from(SEEN),
    pieces=st.lists(st.sampled_from(SMUGGLED), min_size=1, max_size=3),
    within=st.booleans(),
    at=st.integers(0, 400),
    cut=st.integers(0, 60),
    tenant=st.sampled_from(["", "a", "b"]),
)
@example(seen=SEEN[1], pieces=[SMUGGLED[0]], within=True, at=0, cut=0, tenant="")
@example(seen=SEEN[1], pieces=[SMUGGLED[3]], within=True, at=0, cut=0, tenant="a")
@example(seen=SEEN[0], pieces=[b""], within=False, at=0, cut=400, tenant="a")
def test_a_decision_is_the_one_without_a_memory(
    seen: tuple[str, bytes], pieces: list[bytes], within: bool, at: int, cut: int, tenant: str
) -> None:
    path, body = seen
    matcher = remembering()
    start = body.index(b"here") if within else min(at, len(body))
    cut = 0 if within else cut
    body = body[:start] + b"".join(pieces) + body[start + cut :]
    question = Question(path, body, tenant=tenant)
    new = unknown(question)
    match = matcher.match(question, TABLE)
    refused = carries_command(body, question.traces)
    assert match == Matcher(FingerprintMemo(8)).match(new, TABLE)
    assert refused == carries_command(body)
    assert planned(question, match) == planned(new, match)
    assert read_chain(question, match.salt) == read_chain(new, match.salt)
    found = read(body)
    if found is None:
        return
    assert refused == commands(found)
    rewriting = planned(question, match)
    if isinstance(rewriting, Rewriting):
        found = read(rewriting.apply(body, len(body) + 100).body)
        assert found is not None
    if rewriting != "refused":
        salts = {value for name, value in found if name == "cache_salt"}
        assert salts == ({match.salt} if match.salt else set())


def test_an_end_that_is_the_tail_of_another_hides_none() -> None:
    matcher = Matcher(FingerprintMemo(8))
    model, tools, turns = (json.loads(chat())[name] for name in ("model", "tools", "messages"))
    one = json.dumps({"model": model, "tools": tools, "messages": turns}).encode()
    two = json.dumps({"model": model, "tools": tools, "messages": turns, "stop": ["x"]}).encode()
    for body in (one, two):
        matcher.match(Question(CHAT, body), TABLE)
    assert two.endswith(one[-2:])
    for body in (one, two):
        known = Question(CHAT, body).known
        assert known is not None
        assert known.turns.strip(b", ") == json.dumps(turns[1]).encode()


def test_what_is_kept_of_prompts_is_counted_as_well() -> None:
    long = Payload(systemInstructions="word " * 400)
    table = routes(prefixes=(prefix(fingerprint=payload_fingerprint(MODEL, long)),))
    turns = [{"role": "system", "content": long.system}, {"role": "user", "content": TURN}]
    matcher = Matcher(FingerprintMemo(8))
    tracemalloc.start()
    sizes = 0
    for number in range(300):
        body = json.dumps({"user": number, "model": MODEL, "messages": turns}).encode()
        matcher.match(Question(CHAT, body), table)
        known = Question(CHAT, body).known
        assert known is not None
        assert read_chain(Question(CHAT, body)).hashes
        sizes += len(known.opening.before) + known.opening.size
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < sizes


def test_a_tenant_without_anything_of_its_own_is_not_remembered() -> None:
    matcher = Matcher(FingerprintMemo(8))
    matcher.match(Question(CHAT, chat()), TABLE)
    tracemalloc.start()
    for number in range(100):
        tenant = f"{number}{'t' * 50_000}"
        assert matcher.match(Question(CHAT, chat(), tenant=tenant), TABLE).salt == ""
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1_000_000
