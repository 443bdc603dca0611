"""The longest declared text that a request's begins with."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import canonical_text
from promptprefix.fingerprint import system_bytes
from promptprefix_router.matching import heads
from promptprefix_router.matching.heads import DeclaredHead, HeadIndex, Place, _place, opening

FRAME = b"f" * 32
OTHER = b"o" * 32


def declared(text: str, frame: bytes = FRAME, salt: str = "") -> DeclaredHead:
    name = f"{text}/{salt}/{frame[:1].decode()}"
    made = DeclaredHead.of(frame, salt, opening(system_bytes(text)), name)
    assert made is not None
    return made


def longest(index: HeadIndex, text: str, frame: bytes = FRAME, salt: str = "") -> str | None:
    return index.longest(frame, salt, system_bytes(text))


TABLE = HeadIndex(
    [
        declared("Be brief."),
        declared("Be brief. Be kind."),
        declared("Be brief. Be kind.", salt="s"),
        declared("Be brief. Be kind. Be it.", salt="s"),
        declared("Be", OTHER),
        declared('Say "x'),
        declared("Caf\u00e9"),
        declared("cafe"),
    ]
)


@pytest.mark.parametrize(
    ("text", "frame", "salt", "found"),
    [
        ("Be brief. Be quick.", FRAME, "", "Be brief.//f"),
        ("Be brief. Be kind. Now.", FRAME, "", "Be brief. Be kind.//f"),
        ("Be brief. Be kind. Be it. Now.", FRAME, "", "Be brief. Be kind.//f"),
        ("Be brief. Be kind. Be it. Now.", FRAME, "s", "Be brief. Be kind. Be it./s/f"),
        ("Be brief.", FRAME, "s", None),
        ("Be brief", FRAME, "", None),
        ("Be brief. Be kind.", OTHER, "", "Be//o"),
        ("Be", b"x" * 32, "", None),
        ("Zebra", FRAME, "", None),
        ("", FRAME, "", None),
        ('Say "xyz"', FRAME, "", 'Say "x//f'),
        ('Say "', FRAME, "", None),
        ("Cafe\u0301 noir", FRAME, "", "Caf\u00e9//f"),
        ("cafe\u0301 noir", FRAME, "", None),
    ],
)
def test_the_table(text: str, frame: bytes, salt: str, found: str | None) -> None:
    assert longest(TABLE, text, frame, salt) == found


def test_an_empty_text_is_no_head() -> None:
    assert DeclaredHead.of(FRAME, "", opening(system_bytes("")), "f") is None
    assert (len(HeadIndex()), HeadIndex().knows(FRAME)) == (0, False)
    assert (len(TABLE), TABLE.knows(OTHER), TABLE.knows(b"")) == (8, True, False)


TEXT = st.text(st.sampled_from('ab"\\\n\u00e9\u0301e\U0001f642'), max_size=12)


def begins(text: str, texts: Iterable[str]) -> str | None:
    known = [canonical_text(each) for each in texts]
    whole = canonical_text(text)
    found = [head for head in known if head and whole.startswith(head)]
    return max(found, key=len, default=None)


@settings(max_examples=300)
@given(st.lists(TEXT, max_size=30), TEXT, TEXT)
def test_it_finds_what_a_comparison_with_each_finds(texts: list[str], text: str, tail: str) -> None:
    written = [declared(canonical) for head in texts if (canonical := canonical_text(head))]
    older = HeadIndex([*written[1::2], declared(text or "x")])
    index = older.replaced(written)
    assert len(index) == len(set(written))
    for each in (text, *(head + tail for head in texts)):
        expected = begins(each, texts)
        assert longest(index, each) == (expected and f"{expected}//f")


class Asked(bytes):
    """Bytes that count how often it is asked how they begin."""

    times = 0

    def startswith(self, *arguments: object) -> bool:  # type: ignore[override]
        Asked.times += 1
        return bytes.startswith(self, *arguments)  # type: ignore[arg-type]


def asked(frame: bytes, salt: str, begun: bytes) -> Place:
    scope, text = _place(frame, salt, begun)
    return scope, Asked(text)


@pytest.mark.parametrize("wrong_at", [1, 700, 1_999, 2_000])
def test_texts_in_texts_are_searched_in_few_steps(
    wrong_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 2,000 texts begins with all before it; a request leaves them anywhere."""
    index = HeadIndex(declared("a" * length) for length in range(1, 2_001))
    monkeypatch.setattr(heads, "_place", asked)
    Asked.times = 0
    text = "a" * wrong_at + "b" + "a" * 2_000
    assert longest(index, text) == f"{'a' * wrong_at}//f"
    assert 1 <= Asked.times <= 70
