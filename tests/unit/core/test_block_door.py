"""Who is let in to a feed of blocks."""

from __future__ import annotations

import pytest

from promptprefix.block_door import MAX_NONCES, NONCE_BYTES, VALID_S, Door, authorization
from promptprefix.block_stream import KEY_BYTES, BlockKeys

KEYS = BlockKeys.of(bytes(range(KEY_BYTES)))
OTHERS = BlockKeys.of(bytes(KEY_BYTES))
NOW = 1_800_000_000.5
NONCE = bytes(NONCE_BYTES)
VALUE = authorization(KEYS, "u-1", 4, NOW, NONCE)


def door(opened: float = NOW - 1_000) -> Door:
    return Door("u-1", opened)


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def test_who_has_the_key_is_let_in_once() -> None:
    opened = door()
    assert opened.admits(KEYS, VALUE, 4, NOW)
    assert not opened.admits(KEYS, VALUE, 4, NOW)
    assert opened.admits(KEYS, authorization(KEYS, "u-1", 4, NOW, nonce(1)), 4, NOW)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "PromptPrefix",
        VALUE.removeprefix("PromptPrefix "),
        VALUE.replace("PromptPrefix", "Bearer"),
        VALUE + "0",
        VALUE + "\n",
        " " + VALUE,
        VALUE.upper(),
        VALUE[:-1] + ("0" if VALUE[-1] != "0" else "1"),
        VALUE.replace("1800000000", "1800000001"),
        VALUE.replace("1800000000", "\u0661800000000"),
        VALUE.replace("1800000000", "-1800000000"),
        VALUE.replace(NONCE.hex(), nonce(1).hex()),
        authorization(OTHERS, "u-1", 4, NOW, NONCE),
        authorization(KEYS, "u-2", 4, NOW, NONCE),
        authorization(KEYS, "u-1", 8, NOW, NONCE),
    ],
)
def test_nobody_else_is(value: str | None) -> None:
    opened = door()
    assert not opened.admits(KEYS, value, 4, NOW)
    assert opened.admits(KEYS, VALUE, 4, NOW)


def test_nobody_is_let_in_without_a_key() -> None:
    assert not door().admits(None, VALUE, 4, NOW)


@pytest.mark.parametrize(
    ("seconds", "let_in"), [(-VALID_S - 1, False), (-VALID_S, True), (59, True), (60.5, False)]
)
def test_a_proof_is_good_for_a_minute(seconds: float, let_in: bool) -> None:
    assert door().admits(KEYS, VALUE, 4, NOW + seconds) is let_in


def test_a_proof_is_not_good_again_after_the_door_was_opened_anew() -> None:
    assert not door(NOW + 1).admits(KEYS, VALUE, 4, NOW + 2)
    assert door(NOW).admits(KEYS, VALUE, 4, NOW)


def test_what_is_remembered_is_bounded_and_forgotten_in_time() -> None:
    opened = door()
    for number in range(MAX_NONCES):
        value = authorization(KEYS, "u-1", 4, NOW, nonce(number + 1))
        assert opened.admits(KEYS, value, 4, NOW)
    assert not opened.admits(KEYS, VALUE, 4, NOW)
    later = NOW + VALID_S + 1
    assert opened.admits(KEYS, authorization(KEYS, "u-1", 4, later, NONCE), 4, later)


def test_neither_key_nor_proof_is_shown() -> None:
    opened = door()
    opened.admits(KEYS, VALUE, 4, NOW)
    assert NONCE.hex() not in repr(opened)
