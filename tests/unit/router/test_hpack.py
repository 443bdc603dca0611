"""Header blocks: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from promptprefix_router.gateway.hpack import MAX_LIST_BYTES, HpackDecoder, HpackError, written

CALL = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (b":authority", b"picker"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"x-forwarded-for", b"10.0.0.1"),
]
# Made with the package hpack 4.2.0.
FIRST = (
    b"\x83\x87D\xa5`\xb5w?\xa5\xd0[;\x98\x85\\\xbeS\x15v\x1c\x8b\xf7e|\x1eR[*\x1d\x1a\xec9\n\x84"
    b"\x1e\xc65\xd8r\x15\x08A\x85\xac\xc4\xea[?@\x82I\x7f\x86M\x835\x05\xb1\x1f_\x8b\x1du\xd0b\r"
    b"&=LMed@\x8b\xf2\xb4\xa7\xb3\xc0\xec\x90\xb2-)\xec\x86\x08\x17\x02\xe0\\?"
)
SECOND = b"\x83\x87\xc2\xc1\xc0\xbf\xbe"
WITHOUT_TABLE = b" D\x82b?@\x81\xf3\x87\xf5\xff\xfc\x7f\xff\xf8\xff"


def test_the_blocks_of_one_connection() -> None:
    decoder = HpackDecoder()
    assert decoder.decode(FIRST) == CALL
    assert decoder.decode(SECOND) == CALL
    assert decoder.decode(WITHOUT_TABLE) == [(b":path", b"/b"), (b"x", "y\xff".encode())]
    with pytest.raises(HpackError, match="no such index"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        # Appendix C of RFC 7541.
        (b"@\ncustom-key\rcustom-header", [(b"custom-key", b"custom-header")]),
        (b"\x04\x0c/sample/path", [(b":path", b"/sample/path")]),
        (b"\x10\x08password\x06secret", [(b"password", b"secret")]),
        (b"\x82", [(b":method", b"GET")]),
        (bytes.fromhex("418cf1e3c2e5f23a6ba0ab90f4ff"), [(b":authority", b"www.example.com")]),
        (bytes.fromhex("5886a8eb10649cbf"), [(b"cache-control", b"no-cache")]),
        (
            bytes.fromhex("408825a849e95ba97d7f8925a849e95bb8e8b4bf"),
            [(b"custom-key", b"custom-value")],
        ),
        (b"", []),
    ],
)
def test_blocks(block: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    assert HpackDecoder().decode(block) == headers


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xff",
        b"\xff\xff\xff\xff\xff\x0f",
        b"\xbe",
        b"@",
        b"@\x05ab",
        b"@\x01a",
        b"\x82\x20",
        b"\x3f\xe2\x1f",
        b"@\x01a\x81\xff",
        b"@\x01a\x81\x00",
        b"@\x01a\x84\xff\xff\xff\xff",
    ],
    ids=[
        "index 0", "cut integer", "huge integer", "no entry", "no name", "cut name", "no value",
        "late table size", "large table", "padding of a byte", "padding of zeros", "end of string",
    ],
)  # fmt: skip
def test_what_is_no_block(block: bytes) -> None:
    with pytest.raises(HpackError):
        HpackDecoder().decode(block)


def test_a_small_block_can_not_unfold_to_a_large_list() -> None:
    decoder = HpackDecoder()
    decoder.decode(b"@\x01a\x7f\x81\x17" + bytes(3072))
    with pytest.raises(HpackError, match="too many"):
        decoder.decode(b"\xbe" * (MAX_LIST_BYTES // 3000 + 1))


def test_the_table_forgets_the_oldest() -> None:
    decoder = HpackDecoder()
    for letter in b"abcde":
        decoder.decode(b"@\x01" + bytes((letter,)) + b"\x7f\x81\x07" + bytes(1024))
    assert [decoder.decode(bytes((0xBE + at,)))[0][0] for at in range(3)] == [b"e", b"d", b"c"]
    with pytest.raises(HpackError):
        decoder.decode(b"\xc1")
    decoder.decode(b"@\x01x\x7f\x81\x27" + bytes(5120))
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=600)), max_size=5))
@example([(b"grpc-message", b"x" * 127), (b"a", b"y" * 128), (b"b", b"z" * 20_000)])
def test_what_is_written_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert HpackDecoder().decode(written(*headers)) == headers


@given(st.binary(max_size=60))
def test_any_bytes_are_a_block_or_are_refused(block: bytes) -> None:
    decoder = HpackDecoder()
    try:
        decoder.decode(block)
    except HpackError:
        return
