"""HPACK (RFC 7541): header blocks of HTTP/2 read, and the few that are written."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

Headers = list[tuple[bytes, bytes]]

MAX_TABLE_BYTES = 4096
"""Size of the dynamic table; HTTP/2's default, which no setting of ours changes."""
MAX_LIST_BYTES = 65_536
"""Longest list of headers, by HTTP/2's count: 32 bytes more for each."""

_ENTRY_BYTES = 32
_STATIC: tuple[tuple[bytes, bytes], ...] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", code) for code in (b"200", b"204", b"206", b"304", b"400", b"404", b"500")),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in (
            b"accept-language accept-ranges accept access-control-allow-origin age allow "
            b"authorization cache-control content-disposition content-encoding content-language "
            b"content-length content-location content-range content-type cookie date etag expect "
            b"expires from host if-match if-modified-since if-none-match if-range "
            b"if-unmodified-since last-modified link location max-forwards proxy-authenticate "
            b"proxy-authorization range referer refresh retry-after server set-cookie "
            b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
        ).split()
    ),
)

# Symbols by the length of their code, in order: the code is canonical (appendix B).
_SYMBOLS: dict[int, bytes | list[int]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b"!\"()?",
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: [92, 195, 208],
    20: [128, 130, 131, 162, 184, 194, 224, 226],
    21: [153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230],
    22: [129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186,
         187, 189, 190, 196, 198, 228, 232, 233],
    23: [1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166,
         168, 174, 175, 180, 182, 183, 188, 191, 197, 231, 239],
    24: [9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237],
    25: [199, 207, 234, 235],
    26: [192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255],
    27: [203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253,
         254],
    28: [2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29,
         30, 31, 127, 220, 249],
    30: [10, 13, 22],
}  # fmt: skip


def _huffman() -> dict[int, int]:
    """Return the symbols by their code with a 1 before it, which tells its length."""
    found = {}
    code, before = 0, min(_SYMBOLS)
    for length, symbols in _SYMBOLS.items():
        code <<= length - before
        before = length
        for symbol in symbols:
            found[1 << length | code] = symbol
            code += 1
    return found


_HUFFMAN = _huffman()


class HpackError(ValueError):
    """A header block that is none, or that is too large."""


class HpackDecoder:
    """Reads the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._dynamic: deque[tuple[bytes, bytes]] = deque()
        self._bytes = 0
        self._limit = MAX_TABLE_BYTES

    def decode(self, block: bytes) -> Headers:
        """Return the headers of a block. Raises `HpackError`."""
        headers: Headers = []
        place, total = 0, 0
        while place < len(block):
            first = block[place]
            if first & 0x80:
                index, place = _integer(block, place, 7)
                header = self._entry(index)
            elif first & 0x60 == 0x20:
                size, place = _integer(block, place, 5)
                if headers or size > MAX_TABLE_BYTES:
                    raise HpackError("a table size out of place")
                self._limit = size
                self._evict(0)
                continue
            else:
                indexed = first & 0x40
                header, place = self._literal(block, place, 6 if indexed else 4)
                if indexed:
                    self._add(header)
            headers.append(header)
            total += len(header[0]) + len(header[1]) + _ENTRY_BYTES
            if total > MAX_LIST_BYTES:
                raise HpackError("too many headers")
        return headers

    def _literal(self, block: bytes, place: int, prefix: int) -> tuple[tuple[bytes, bytes], int]:
        index, place = _integer(block, place, prefix)
        if index:
            name = self._entry(index)[0]
        else:
            name, place = _string(block, place)
        value, place = _string(block, place)
        return (name, value), place

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        index -= len(_STATIC) + 1
        if not 0 <= index < len(self._dynamic):
            raise HpackError("no such index")
        return self._dynamic[index]

    def _add(self, header: tuple[bytes, bytes]) -> None:
        size = len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict(size)
        if size <= self._limit:
            self._dynamic.appendleft(header)
            self._bytes += size

    def _evict(self, room: int) -> None:
        while self._dynamic and self._bytes + room > self._limit:
            name, value = self._dynamic.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def written(*headers: tuple[bytes, bytes]) -> bytes:
    """Write headers so that no table is needed; names and values are short."""
    parts = []
    for name, value in headers:
        parts += [b"\x10", _length(name), name, _length(value), value]
    return b"".join(parts)


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),))
    rest = len(text) - 127
    found = bytearray(b"\x7f")
    while rest >= 128:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _integer(block: bytes, place: int, prefix: int) -> tuple[int, int]:
    """Return the integer whose first byte has so many bits for it, and the place behind it."""
    if place >= len(block):
        raise HpackError("a block that ends too early")
    most = (1 << prefix) - 1
    value = block[place] & most
    place += 1
    if value < most:
        return value, place
    for shift in (0, 7, 14):
        if place >= len(block):
            raise HpackError("a block that ends too early")
        byte = block[place]
        place += 1
        value += (byte & 127) << shift
        if byte < 128:
            return value, place
    raise HpackError("an integer that is too large")


def _string(block: bytes, place: int) -> tuple[bytes, int]:
    if place >= len(block):
        raise HpackError("a block that ends too early")
    coded = block[place] & 0x80
    length, place = _integer(block, place, 7)
    end = place + length
    if end > len(block):
        raise HpackError("a block that ends too early")
    text = block[place:end]
    return (_decoded(text) if coded else text), end


@lru_cache(maxsize=256)
def _decoded(text: bytes) -> bytes:
    """Return a Huffman-coded text."""
    found = bytearray()
    code = 1
    for byte in text:
        for shift in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | byte >> shift & 1
            symbol = _HUFFMAN.get(code)
            if symbol is not None:
                found.append(symbol)
                code = 1
        if code > 0x7FFFFFFF:
            raise HpackError("no code has so many bits")
    # What fills the last byte up is the beginning of the longest code: ones.
    if code > 0xFF or code & code + 1:
        raise HpackError("a text that ends within a code")
    return bytes(found)
