"""Names of blocks and the frames they travel in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.block_stream import (
    KEY_BYTES,
    MAX_BODY_BYTES,
    MAX_NAMES,
    NAME_BYTES,
    Added,
    Alive,
    BlockKeys,
    Cleared,
    Decoder,
    Frame,
    Hello,
    Removed,
    StreamError,
    Whole,
    added,
    chain,
    encode,
    namespace_key,
    removed,
    root_name,
)
from promptprefix.tokens import token_bytes

KEYS = BlockKeys.of(bytes(range(KEY_BYTES)))
OTHERS = BlockKeys.of(bytes(KEY_BYTES))
HELLO = Hello("e1", 16, 4, ("m", "alias"), complete=False)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
NAMES = st.lists(st.binary(min_size=NAME_BYTES, max_size=NAME_BYTES), max_size=20).map(tuple)
HELLOS = st.builds(
    Hello,
    epoch=st.text(max_size=20),
    block_size=st.integers(0, 2**31 - 1),
    every=st.just(4),
    bases=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    complete=st.booleans(),
)
FRAMES = st.one_of(
    HELLOS,
    st.builds(Added, NAMES),
    st.builds(Removed, NAMES),
    st.just(Cleared()),
    st.just(Whole()),
    st.just(Alive()),
)


def test_each_namespace_has_its_own_key_and_each_use_too() -> None:
    seed = bytes(KEY_BYTES)
    key = namespace_key(seed, "ml")
    keys = BlockKeys.of(key)
    assert len({seed, key, namespace_key(seed, "other"), keys.names, keys.door}) == 5
    assert key == namespace_key(seed, "ml")
    assert BlockKeys.from_hex(key.hex()) == keys


@pytest.mark.parametrize("text", ["", "00", "xy" * KEY_BYTES, "00" * (KEY_BYTES + 1)])
def test_what_is_no_key_is_none(text: str) -> None:
    assert BlockKeys.from_hex(text) is None


def test_keys_are_not_shown() -> None:
    assert KEYS.names.hex() not in repr(KEYS)
    assert repr(KEYS) == "BlockKeys()"


def test_the_names_of_version_1() -> None:
    # A name that changes parts routers from sidecars of another release: raise the version.
    root = root_name(KEYS, "adapter", "salt")
    assert [name.hex() for name in (root, *chain(KEYS, root, list(range(40)), 16))] == [
        "613fbbbc2f42cd5a",
        "95ff2d97de536515",
        "76a2b543b6d6d400",
    ]


def test_roots_tell_adapter_salt_and_key_apart() -> None:
    roots = [
        root_name(keys, adapter, salt)
        for keys in (KEYS, OTHERS)
        for adapter, salt in (("", ""), ("a", ""), ("", "a"), ("a", "b"), ("ab", ""), ("1:a", ""))
    ]
    assert len(set(roots)) == len(roots)


@given(TOKENS, st.integers(1, 20))
def test_a_chain_has_a_name_for_each_whole_block(tokens: list[int], size: int) -> None:
    root = root_name(KEYS)
    names = chain(KEYS, root, tokens, size)
    assert len(names) == len(tokens) // size
    assert all(len(name) == NAME_BYTES for name in names)
    assert names == chain(KEYS, root, token_bytes(tokens), size)


@given(TOKENS, st.integers(1, 8), st.integers(0, 8))
def test_a_chain_goes_on_where_another_ended(tokens: list[int], size: int, blocks: int) -> None:
    root = root_name(KEYS)
    names = chain(KEYS, root, tokens, size)
    cut = min(blocks, len(names))
    first = chain(KEYS, root, tokens[: cut * size], size)
    last = first[-1] if first else root
    assert first + chain(KEYS, last, tokens[cut * size :], size) == names


@given(TOKENS.filter(bool), st.data())
def test_a_name_stands_for_all_tokens_before(tokens: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens]
    other[place] ^= 1
    root = root_name(KEYS)
    pairs = list(zip(chain(KEYS, root, tokens, 1), chain(KEYS, root, other, 1), strict=True))
    assert all(one == two for one, two in pairs[:place])
    assert all(one != two for one, two in pairs[place:])
    assert not set(chain(OTHERS, root, tokens, 1)) & {one for one, _ in pairs}


def test_a_block_has_tokens() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        chain(KEYS, root_name(KEYS), [1], 0)


@given(HELLOS, st.lists(FRAMES, max_size=8), st.data())
def test_frames_survive_however_they_are_cut(
    hello: Hello, frames: list[Frame], data: st.DataObject
) -> None:
    sent = [hello, *frames]
    raw = b"".join(encode(frame) for frame in sent)
    decoder, came, at = Decoder(4), list[Frame](), 0
    while at < len(raw):
        step = data.draw(st.integers(1, len(raw) - at))
        came += decoder.feed(raw[at : at + step])
        at += step
    assert came == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(raw: bytes) -> None:
    decoder = Decoder(4)
    decoder.feed(encode(HELLO))
    try:
        frames = decoder.feed(raw)
    except StreamError:
        return
    assert len(frames) <= len(raw) // 5


def test_many_names_take_several_frames() -> None:
    names = [place.to_bytes(NAME_BYTES, "big") for place in range(MAX_NAMES + 1)]
    decoder = Decoder(4)
    frames = decoder.feed(encode(HELLO) + b"".join(added(names)) + b"".join(removed(names)))
    sizes = [len(frame.names) for frame in frames if isinstance(frame, Added | Removed)]
    assert sizes == [MAX_NAMES, 1, MAX_NAMES, 1]
    assert not list(added([]))


def test_frames_of_later_kinds_are_passed_over() -> None:
    later = b"Z\x00\x00\x00\x02ab"
    assert Decoder(4).feed(encode(HELLO) + later + encode(Alive())) == [HELLO, Alive()]


HUGE = (MAX_BODY_BYTES + 1).to_bytes(4, "big")


def greeting(text: str) -> bytes:
    return b"H" + len(text).to_bytes(4, "big") + text.encode()


FIELDS = '"version":1,"epoch":"e","block_size":16,"every":4,"bases":[],"complete":true'


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (encode(Alive()), "begins with its version"),
        (b"H" + HUGE, "are allowed"),
        (b"Z" + HUGE, "are allowed"),
        (encode(HELLO) + b"A\x00\x00\x00\x07" + b"1234567", "do not fill 7 bytes"),
        (encode(HELLO) + b"C\x00\x00\x00\x01x", "has no body"),
        (greeting("{"), "no JSON"),
        (greeting("[" * 5_000), "no JSON"),
        (greeting("[]"), "another version"),
        (greeting("{" + FIELDS.replace(":1,", ":2,", 1) + "}"), "another version"),
        (greeting("{" + FIELDS.replace("[]", "[1]") + "}"), "names of the base model"),
        (greeting("{" + FIELDS.replace('"e"', "3") + "}"), "epoch"),
        (greeting("{" + FIELDS.replace("true", "1") + "}"), "completeness"),
        (greeting("{" + FIELDS.replace("16", "-1") + "}"), "block size"),
        (greeting("{" + FIELDS.replace("16", "true") + "}"), "block size"),
        (greeting("{" + FIELDS.replace("4", "8") + "}"), "every 8 blocks, not 4"),
    ],
)
def test_what_is_no_feed_is_refused(raw: bytes, fault: str) -> None:
    with pytest.raises(StreamError, match=fault):
        Decoder(4).feed(raw)


def test_what_is_out_of_bounds_is_not_sent() -> None:
    name = bytes(NAME_BYTES)
    with pytest.raises(ValueError, match="at most"):
        encode(Added((name,) * (MAX_NAMES + 1)))
    with pytest.raises(ValueError, match="8 bytes"):
        encode(Removed((name, b"short")))
    long = Hello("e" * 9_999, 16, 4, ("m", "n" * 9_999))
    assert Decoder(4).feed(encode(long)) == [Hello("e" * 256, 16, 4, ("m",))]
    widest = Hello("", 16, 4, tuple(chr(1) * 256 for _ in range(40)))
    assert Decoder(4).feed(encode(widest)) == [Hello("", 16, 4, widest.bases[:32])]
