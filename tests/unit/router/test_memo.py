"""What is remembered of requests, and how much."""

from __future__ import annotations

import json

from promptprefix.shapes.chat import CHAT
from promptprefix_router.matching.memo import FingerprintMemo, FrameMemo, Reading
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
