"""HTTP/2 frames (RFC 9113): their names, and how they are written."""

from __future__ import annotations

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES = 16_384
"""Longest payload of a frame that either side takes without having said so."""
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Settings that matter here."""

    HEADER_TABLE_SIZE = 1
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Error codes."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The peer breaks the protocol: the connection ends with ``code``."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write a frame."""
    head = len(payload) << 48 | kind << 40 | flags << 32 | stream
    return head.to_bytes(HEAD_BYTES, "big") + payload


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Write a frame whose payload is a number of 32 bits."""
    return frame(kind, 0, stream, number.to_bytes(4, "big"))


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Write the settings of this side."""
    parts = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings.items())
    return frame(Kind.SETTINGS, 0, 0, b"".join(parts))


def goaway_frame(last: int, code: Code, message: str = "") -> bytes:
    """Write the end of a connection, and which stream was the last that counted."""
    payload = last.to_bytes(4, "big") + code.to_bytes(4, "big") + message.encode()
    return frame(Kind.GOAWAY, 0, 0, payload)


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return what a payload holds beside its padding. Raises `Http2Error`."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]
