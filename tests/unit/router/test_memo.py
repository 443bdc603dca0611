"""What is remembered of requests, and how much."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import Frame
from promptprefix.request import Surroundings
from promptprefix.shapes.chat import CHAT
from promptprefix_router.matching.memo import (
    TOO_LARGE,
    FingerprintMemo,
    FrameMemo,
    Reading,
    _least_size,
)
from promptprefix_router.matching.request_head import DeclaringHead, DeclaringReader

from .samples import chat, prefix

read_chat = DeclaringReader(CHAT).read


def tailed(tail: str, **changes: object) -> DeclaringHead:
    messages = [{"role": "system", "content": f"You are a bot.{tail}"}]
    return read_chat(chat(messages=messages, **changes))


def test_it_remembers_and_stays_small() -> None:
    memo = FingerprintMemo(2)
    heads = [read_chat(chat(chat_template_kwargs={"n": n})) for n in range(3)]
    first, made = memo.read(heads[0])
    assert made is not None
    assert memo.read(heads[0]) == (first, None)
    memo.read(heads[1])
    memo.read(heads[0])
    memo.read(heads[2])
    assert len(memo) == 2
    assert (memo.hits, memo.misses) == (2, 3)
    memo.read(heads[0])
    assert memo.hits == 3
    memo.read(heads[1])
    assert memo.misses == 4


def test_it_also_remembers_what_has_no_fingerprint() -> None:
    memo = FingerprintMemo(2)
    for head, cause in (
        (read_chat(chat(tools=[2**60])), "not-canonical"),
        (read_chat(chat(documents=["x"])), "own-template"),
    ):
        assert memo.read(head) == memo.read(head) == (Reading(cause=cause), None)
    assert (memo.hits, memo.misses) == (2, 2)


def test_a_text_that_cannot_be_read_is_no_fault_of_its_frame() -> None:
    memo = FingerprintMemo(2)
    images = [{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}]
    assert memo.read(read_chat(chat(messages=images)))[0].cause == "not-text"
    assert memo.read(read_chat(chat()))[0].fingerprint == prefix().fingerprint


def test_texts_with_other_tails_share_a_frame() -> None:
    memo = FingerprintMemo(8)
    one, other = memo.read(tailed(" a"))[0], memo.read(tailed(" b"))[0]
    assert one.frame == other.frame == memo.read(read_chat(chat()))[0].frame
    assert one.fingerprint != other.fingerprint
    assert memo.read(tailed(" a", tools=[]))[0].frame != one.frame


def test_frames_are_bounded_by_their_bytes() -> None:
    memo = FrameMemo(16_000)
    for number in range(50):
        head = read_chat(chat(chat_template_kwargs={"n": number, "x": "x" * 1_000}))
        assert not isinstance(memo.frame(head, head.keys[0]), str)
        assert memo.size <= 16_000
    large = read_chat(json.dumps({"model": "m" * 9_000, "messages": [{}]}).encode())
    frame = memo.frame(large, large.keys[0])
    assert not isinstance(frame, str)
    assert memo.size > 4_000, "what is too large for the room drives nothing out"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the tools that were brought into canonical form."""
    sizes: list[int] = []
    frame = Surroundings.frame.fget
    assert frame is not None

    def counted(around: Surroundings) -> Frame:
        sizes.append(len(json.dumps(around.tools)))
        return frame(around)

    monkeypatch.setattr(Surroundings, "frame", property(counted))
    return sizes


def tooled(number: int, size: int, **changes: object) -> DeclaringHead:
    function = {"name": f"f{number}", "description": "x" * size}
    return read_chat(chat(tools=[{"type": "function", "function": function}], **changes))


def test_tools_larger_than_any_declared_ones_cost_no_canonical_form(made: list[int]) -> None:
    memo = FingerprintMemo(64)
    memo.bound(2_000)
    for number in range(20):
        assert memo.read(tooled(number, 100_000)) == (Reading(cause=TOO_LARGE), None)
    assert made == []
    assert memo.read(tooled(0, 1_500))[0].fingerprint
    assert memo.read(tooled(0, 100_000, tool_choice="none"))[0].fingerprint, "they are not used"
    spaced = json.loads(chat(tools=[{"type": "function", "function": {"name": "f"}}]))
    assert memo.read(read_chat(json.dumps(spaced, indent=900).encode()))[0].fingerprint


@pytest.mark.parametrize("largest", [200_000, math.inf])
def test_a_larger_declared_text_makes_it_look_again(largest: float, made: list[int]) -> None:
    memo = FingerprintMemo(8)
    memo.bound(2_000)
    assert memo.read(tooled(0, 100_000))[0].cause == TOO_LARGE
    memo.bound(largest)
    assert memo.read(tooled(0, 100_000))[0].fingerprint
    assert len(made) == 1


@pytest.mark.parametrize("end", ["18446744073709551616", "1e999"])
def test_what_can_have_no_canonical_form_is_not_tried_at_length(end: str, made: list[int]) -> None:
    memo = FingerprintMemo(8)
    memo.bound(2_000)
    body = chat(tools=["x" * 100_000, "end"]).replace(b'"end"', end.encode())
    assert memo.read(read_chat(body))[0].cause in ("not-canonical", TOO_LARGE, "not-a-function")
    assert made == []


TEXTS = st.text(st.sampled_from('a\r\n\u212a\u1fef\u1100\u1161\u11a8\u0301\U0001d15e\x01"/'))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(st.lists(VALUES, max_size=4), st.dictionaries(TEXTS, VALUES, max_size=2), TEXTS)
def test_a_frame_is_never_smaller_than_was_thought(
    tools: list[object], options: dict[str, object], model: str
) -> None:
    around = Surroundings(model, tools, options)  # type: ignore[arg-type]
    try:
        size = around.frame.size
    except CanonicalError:
        return
    assert _least_size(around) <= size
