"""Bytes of an HTTP/2 connection made into frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from promptprefix_router.gateway.http2_frames import (
    END_HEADERS,
    FRAME_BYTES,
    HEAD_BYTES,
    MAX_WINDOW,
    PREFACE,
    PRIORITIZED,
    Code,
    Http2Error,
    Kind,
    unpadded,
)

MAX_BLOCK_BYTES = 16_384
"""Longest block of headers."""
_PRIORITY_BYTES = 5


class Frame(NamedTuple):
    """A frame; headers come whole and bare, whatever frames they came in."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Http2Reader:
    """Reads what a client sends. Holds at most one incomplete frame and one block of headers."""

    def __init__(self) -> None:
        self.greeted = False
        """Whether the peer has said that it speaks HTTP/2."""
        self._rest = b""
        self._begun: Frame | None = None
        self._block = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Give the frames that are whole by now. Raises `Http2Error`."""
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        if not self.greeted:
            if not (data.startswith(PREFACE) or PREFACE.startswith(data)):
                raise Http2Error(Code.PROTOCOL_ERROR, "no HTTP/2")
            self.greeted = end >= len(PREFACE)
            place = len(PREFACE) if self.greeted else end + 1
        while end - place >= HEAD_BYTES:
            length = int.from_bytes(data[place : place + 3], "big")
            if length > FRAME_BYTES:
                raise Http2Error(Code.FRAME_SIZE_ERROR, "a frame that is too long")
            after = place + HEAD_BYTES + length
            if after > end:
                break
            stream = int.from_bytes(data[place + 5 : place + HEAD_BYTES], "big") & MAX_WINDOW
            payload = data[place + HEAD_BYTES : after]
            kind, flags = data[place + 3], data[place + 4]
            place = after
            if kind in (Kind.HEADERS, Kind.CONTINUATION) or self._begun is not None:
                whole = self._headers(Frame(kind, flags, stream, payload))
                if whole is not None:
                    yield whole
            else:
                yield Frame(kind, flags, stream, payload)
        self._rest = data[place:] if self.greeted else data

    def _headers(self, part: Frame) -> Frame | None:
        """Return the whole block of headers that ends with ``part``, if it does."""
        begun = self._begun
        if begun is None:
            if part.kind != Kind.HEADERS:
                raise Http2Error(Code.PROTOCOL_ERROR, "headers that nobody began")
            block = unpadded(part.flags, part.payload)
            if part.flags & PRIORITIZED:
                block = block[_PRIORITY_BYTES:]
            if part.flags & END_HEADERS:
                return part._replace(payload=block)
            self._begun, self._block = part, bytearray(block)
            return None
        if part.kind != Kind.CONTINUATION or part.stream != begun.stream:
            raise Http2Error(Code.PROTOCOL_ERROR, "headers that do not go on")
        self._block += part.payload
        if len(self._block) > MAX_BLOCK_BYTES:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too many headers")
        if not part.flags & END_HEADERS:
            return None
        self._begun = None
        return begun._replace(payload=bytes(self._block))
