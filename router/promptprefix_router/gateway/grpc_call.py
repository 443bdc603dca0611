"""One gRPC call on a connection: its messages in both directions."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeAlias

from promptprefix_router.gateway.hpack import written

MAX_BACKLOG_BYTES = 1_048_576
"""While a peer leaves more than this unread, no more of the call is taken from it."""

_PREFIX_BYTES = 5
HEAD = written((b":status", b"200"), (b"content-type", b"application/grpc"))


class Status(IntEnum):
    """gRPC's status codes, as far as they are given here."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class Handler(Protocol):
    """What a service does with a call. None of it waits."""

    def received(self, message: bytes) -> None:
        """Take a message of the caller."""

    def ended(self) -> None:
        """Take note that the caller has said everything; `Call.finish` is due some time."""

    def closed(self) -> None:
        """Take note that the call is over, in whatever way; told once."""


Service: TypeAlias = Callable[["Call"], Handler]


class Line(Protocol):
    """What a call needs of its connection."""

    def opened(self, call: Call) -> None:
        """Send the head of the answer."""

    def pump(self, call: Call) -> None:
        """Send of the backlog what the peer takes, and then the end if it is due."""

    def go_on(self, call: Call) -> None:
        """Let the peer send more of the call, if it may."""


class TooLongError(ValueError):
    """A message that is longer than may be, or compressed."""


class Inbox:
    """Makes messages of bytes. Holds one that is incomplete, of ``limit`` bytes at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now. Raises `TooLongError`."""
        if not self._held:
            if len(data) >= _PREFIX_BYTES and self._end(data) == len(data):
                return [data[_PREFIX_BYTES:]]
            if not data:
                return []
        held = self._held
        held += data
        found = []
        while len(held) >= _PREFIX_BYTES and (end := self._end(held)) <= len(held):
            found.append(bytes(held[_PREFIX_BYTES:end]))
            del held[:end]
        return found

    @property
    def held(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._held)

    def _end(self, data: bytes | bytearray) -> int:
        """Return where the message that ``data`` begins with ends."""
        size = int.from_bytes(data[1:_PREFIX_BYTES], "big")
        if data[0] or size > self._limit:
            raise TooLongError("a compressed or too long message")
        return _PREFIX_BYTES + size


class Call:
    """A call that is open until `finish` or until the peer cuts it off."""

    def __init__(self, line: Line, number: int, window: int, limit: int) -> None:
        self._line = line
        self.number = number
        self.window = window
        """Bytes that the peer takes; below zero after it changed its mind."""
        self.due = 0
        """Bytes taken that the peer was not told of yet."""
        self.inbox = Inbox(limit)
        self.backlog = bytearray()
        self.trailers = b""
        """What ends the answer, once it is known."""
        self.heard_all = False
        """Whether the peer has said everything."""
        self.open = True
        self.waiting = False
        self._begun = False
        self.handler: Handler | None = None

    def send(self, message: bytes) -> None:
        """Send a message; nothing happens on a call that is over."""
        if not self.open or self.trailers:
            return
        self._begin()
        self.backlog += b"\0" + len(message).to_bytes(4, "big") + message
        self._line.pump(self)

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """End the call once everything was sent."""
        if not self.open or self.trailers:
            return
        told = [(b"grpc-status", b"%d" % status)]
        if text:
            told.append((b"grpc-message", text.encode("ascii", "replace").replace(b"%", b"%25")))
        self._begin()
        self.trailers = written(*told)
        self._line.pump(self)

    def wait(self) -> None:
        """Take no more than a window of messages until `resume`."""
        self.waiting = True

    def resume(self) -> None:
        """Take messages again."""
        self.waiting = False
        self._line.go_on(self)

    def close(self) -> None:
        """Take note that it is over, and tell the handler."""
        if self.open:
            self.open = False
            self.backlog.clear()
            if self.handler is not None:
                self.handler.closed()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._line.opened(self)
