"""A body that begins and ends like one that is known declares what reading it would say."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.shapes.chat import CHAT
from promptprefix_router.matching.openings import MOST_ENDS, OVERHEAD_BYTES, Openings
from promptprefix_router.matching.request_head import DeclaringHead, DeclaringReader
from promptprefix_router.traces import NO_TRACES, Traces

SYSTEM = {"role": "system", "content": "You are the triage desk."}
TOOLS = [{"type": "function", "function": {"name": "lookup"}}]
FIRST = json.dumps(SYSTEM).encode()


def chat(*turns: object, **others: Any) -> bytes:
    """Return a chat completion that begins with `SYSTEM`."""
    return json.dumps(
        {"messages": [SYSTEM, *turns], "model": "m", "tools": TOOLS, **others}
    ).encode()


def user(text: str) -> dict[str, str]:
    """Return a user's turn."""
    return {"role": "user", "content": text}


def reader(**others: Any) -> DeclaringReader:
    """Return a reader that remembers one body."""
    made = DeclaringReader(CHAT)
    body = chat(user("hello"), **others)
    made.remember(body, made.read(body))
    return made


def test_a_body_with_other_turns_is_known() -> None:
    known = reader()
    assert known.known(chat(user("hello")))
    assert known.known(chat(user("bye"), {"role": "assistant", "content": "x"}, user("?")))
    assert known.known(chat())
    assert not known.known(chat(user("hello"), temperature=0))


@pytest.mark.parametrize(
    "turns",
    [
        b', {"role": "user"}], "messages": [{"role": "user"}',
        b', {"tools": 1}',
        b', {"model": 1}',
        b', {"cache_salt": "s"}',
        b', {"role": "\\u0075ser"}',
        b', {"role"',
        b'{"role": "user"}',
        b",",
    ],
)
def test_a_body_that_may_mean_something_else_is_read(turns: bytes) -> None:
    before, _, after = chat(user("hello")).partition(b", " + json.dumps(user("hello")).encode())
    body = before + turns + after
    assert reader().known(body) is None


_MARKS = (b"{", b"}", b"[", b"]", b",", b":", b" ", b'"', b"\\", b"1", b"null")
_TEXTS = (b'"messages"', b'"tools"', b'"model"', b'"m"', b'"role"', b'"user"', FIRST)
_TRACES = (b"promptprefix", b"cache_salt", b"promp", b"\0", b"\\u0061", b"\\u00")
_PIECES = st.sampled_from([*_MARKS, *_TEXTS, *_TRACES, b', {"role": "user", "content": "x"}'])


@given(st.lists(_PIECES, max_size=8), st.integers(0, 300), st.integers(0, 40))
def test_what_is_known_of_a_body_is_what_reading_it_says(
    pieces: list[bytes], at: int, cut: int
) -> None:
    body = chat(user("hello"))
    other = body[:at] + b"".join(pieces) + body[at + cut :]
    found = reader().known(other)
    if found is not None:
        assert found.opening.head == DeclaringReader(CHAT).read(other)
        assert found.traces == Traces.of(other)


@pytest.mark.parametrize(
    ("declared", "turn", "traces"),
    [
        ("hello", "hello", NO_TRACES),
        ("promptprefix", "hello", Traces(command=True, salt=False, escaped=False)),
        ("cache_salt", "promptprefix", Traces(command=True, salt=True, escaped=False)),
        ("hello", "my cache_salt", Traces(command=False, salt=True, escaped=False)),
    ],
)
def test_a_known_body_has_the_traces_of_its_parts(declared: str, turn: str, traces: Traces) -> None:
    known = reader(note=declared)
    found = known.known(chat(user(turn), note=declared))
    assert found is not None
    assert found.traces == traces


def test_the_same_text_in_another_field_is_not_the_conversation() -> None:
    turns = f"[{json.dumps(SYSTEM)}]"
    openings: Openings[str] = Openings("messages")
    body = f'{{"metadata": {turns}, "messages": {turns}, "model": "m"}}'.encode()
    openings.remember(body, FIRST, "head")
    assert openings.size == 0


def test_memory_is_bounded() -> None:
    openings: Openings[int] = Openings("messages", capacity=10 * OVERHEAD_BYTES)
    bodies = [
        json.dumps({"messages": [{"role": "system", "content": f"{n} {'x' * 300}"}]}).encode()
        for n in range(100)
    ]
    for number, body in enumerate(bodies):
        first = body[body.index(b"[") + 1 : body.rindex(b"]")]
        openings.remember(body, first, number)
        assert openings.size <= 10 * OVERHEAD_BYTES
        found = openings.find(body)
        assert found is not None
        assert (found.opening.head, found.turns) == (number, b"")
    assert openings.find(bodies[0]) is None


def test_ends_that_always_change_are_seldom_remembered() -> None:
    openings: Openings[int] = Openings("messages")
    for number in range(100):
        openings.remember(chat(user("hello"), user_id=number), FIRST, number)
    kept = [n for n in range(100) if openings.find(chat(user("x"), user_id=n)) is not None]
    assert len(kept) == MOST_ENDS


def test_small_bodies_are_counted_with_what_they_take_besides() -> None:
    openings: Openings[DeclaringHead] = Openings("messages")
    fresh = DeclaringReader(CHAT)
    bodies = [
        json.dumps({"user": n, "messages": [SYSTEM], "model": "m"}).encode() for n in range(500)
    ]
    tracemalloc.start()
    for body in bodies:
        head = fresh.read(body)
        assert len(head.keys) == 2
        openings.remember(body, FIRST, head)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2 * openings.size


def test_what_large_bodies_declare_is_counted_as_well() -> None:
    made = DeclaringReader(CHAT)
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 50_000}}]
    bodies = [
        json.dumps({"user": n, "tools": tools, "messages": [SYSTEM], "model": "m"}).encode()
        for n in range(100)
    ]
    tracemalloc.start()
    for body in bodies:
        made.remember(body, made.read(body))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 100 * 100_000 < taken < 1.1 * made._openings.size


def test_what_several_ends_declare_is_kept_once() -> None:
    openings: Openings[DeclaringHead] = Openings("messages")
    fresh = DeclaringReader(CHAT)
    bodies = [chat(user("hello"), user_id=number) for number in range(2)]
    for body in bodies:
        openings.remember(body, FIRST, fresh.read(body))
    heads = [found.opening.head for body in bodies if (found := openings.find(body)) is not None]
    assert len(heads) == 2
    assert heads[0] is heads[1]
