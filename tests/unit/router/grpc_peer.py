"""A gateway's side of a connection, without a network: frames as bytes, and what came back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from promptprefix_router.gateway.grpc_call import Call
from promptprefix_router.gateway.grpc_connection import Connection
from promptprefix_router.gateway.grpc_limits import Limits
from promptprefix_router.gateway.hpack import HpackDecoder, written
from promptprefix_router.gateway.http2_frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    PREFACE,
    Code,
    Kind,
    Setting,
    frame,
    settings_frame,
)

ECHO = b"/test/Echo"
HOLD = b"/test/Hold"


def message(text: bytes) -> bytes:
    """Return a gRPC message."""
    return b"\0" + len(text).to_bytes(4, "big") + text


@dataclass(frozen=True)
class Frame:
    """A frame that came back."""

    kind: Kind
    flags: int
    stream: int
    payload: bytes


@dataclass
class Echo:
    """Says every message back; ends when the caller does."""

    call: Call
    heard: list[bytes] = field(default_factory=list)
    closed_times: int = 0
    holds: bool = False

    def received(self, text: bytes) -> None:
        """Say it back."""
        self.heard.append(text)
        if not self.holds:
            self.call.send(text)

    def ended(self) -> None:
        """End, too."""
        if not self.holds:
            self.call.finish()

    def closed(self) -> None:
        """Count it."""
        self.closed_times += 1


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.aborted = self.paused = False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written += data

    def close(self) -> None:
        """Remember."""
        self.closed = True

    def abort(self) -> None:
        """Remember."""
        self.aborted = True

    def pause_reading(self) -> None:
        """Remember."""
        self.paused = True

    def resume_reading(self) -> None:
        """Remember."""
        self.paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        """Take anything."""
        assert high > 0


class Peer:
    """A connection to a server with two methods, whose calls are in ``calls``."""

    def __init__(self, calls: int = 100, message_bytes: int = 4096, held: int = 8192) -> None:
        self.limits = Limits(calls, message_bytes, held)
        self.calls: list[Echo] = []
        self.wire = Wire()
        services = {
            ECHO: lambda call: self._begin(call),
            HOLD: lambda call: self._begin(call, True),
        }
        self.connection = Connection(services, self.limits)
        self.connection.connection_made(cast("asyncio.Transport", self.wire))
        self._hpack = HpackDecoder()

    def _begin(self, call: Call, holds: bool = False) -> Echo:
        made = Echo(call, holds=holds)
        self.calls.append(made)
        return made

    def greet(self, **settings: int) -> Peer:
        """Say hello, and forget what was said back."""
        named = {Setting[name.upper()]: value for name, value in settings.items()}
        self.say(PREFACE + settings_frame(named))
        self.heard()
        return self

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.connection.data_received(data)

    def begin(self, stream: int, path: bytes = ECHO, flags: int = 0) -> None:
        """Open a call."""
        block = written((b":method", b"POST"), (b":path", path))
        self.say(frame(Kind.HEADERS, END_HEADERS | flags, stream, block))

    def tell(self, stream: int, data: bytes, flags: int = 0) -> None:
        """Send data of a call."""
        self.say(frame(Kind.DATA, flags, stream, data))

    def end(self, stream: int) -> None:
        """End this side of a call."""
        self.tell(stream, b"", END_STREAM)

    def heard(self) -> list[Frame]:
        """Return the frames that came back since the last time."""
        found, data = [], bytes(self.wire.written)
        self.wire.written.clear()
        while data:
            length = int.from_bytes(data[:3], "big")
            end = HEAD_BYTES + length
            stream = int.from_bytes(data[5:HEAD_BYTES], "big")
            found.append(Frame(Kind(data[3]), data[4], stream, data[HEAD_BYTES:end]))
            data = data[end:]
        return found

    def answer(self, stream: int) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the data of a call that came back, and its trailers (or what headers it has)."""
        data, headers = b"", {}
        for each in self.heard():
            if each.stream != stream:
                continue
            if each.kind is Kind.DATA:
                data += each.payload
            elif each.kind is Kind.HEADERS:
                headers.update(self._hpack.decode(each.payload))
        return data, headers

    @property
    def failure(self) -> Code | None:
        """Why the connection ended, if it did by a fault of the peer."""
        if not self.wire.closed:
            return None
        ends = [each for each in self.heard() if each.kind is Kind.GOAWAY]
        return Code(int.from_bytes(ends[-1].payload[4:8], "big"))
