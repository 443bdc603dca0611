"""A gateway's connection: HTTP/2 (RFC 9113) as far as gRPC needs it, by a plain state machine.

gRPC's own asyncio server takes some ten times as long for a call with a few short messages. Nothing
here waits: what is received is handled at once, so that of the peer's words only incomplete
messages are kept. A peer that does not read is not read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from promptprefix_router.gateway.grpc_call import (
    HEAD,
    MAX_BACKLOG_BYTES,
    Call,
    Service,
    Status,
    TooLongError,
)
from promptprefix_router.gateway.grpc_limits import Limits
from promptprefix_router.gateway.hpack import HpackDecoder, HpackError
from promptprefix_router.gateway.http2_frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    MAX_WINDOW,
    Code,
    Http2Error,
    Kind,
    Setting,
    frame,
    goaway_frame,
    number_frame,
    settings_frame,
    unpadded,
)
from promptprefix_router.gateway.http2_reader import MAX_BLOCK_BYTES, Http2Reader

CALL_WINDOW = 1_048_576
"""Bytes of a call that a peer may send before it is told to go on."""
LINE_WINDOW = 16_777_216
"""The same for all calls of a connection together."""
WRITE_BUFFER_BYTES = 1_048_576
GREETING_S = 10.0
"""How long a new peer may take to say that it speaks HTTP/2."""
QUIET_S = 60.0
"""A peer that said nothing for so long is asked whether it is there,"""
PATIENCE_S = 20.0
"""and has so long to answer."""

_PING = b"promptpr"
_FAREWELL = b"farewell"


class Connection(asyncio.Protocol):
    """One connection. ``services`` are by the path of their method."""

    def __init__(self, services: Mapping[bytes, Service], limits: Limits) -> None:
        self._services = services
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._reader = Http2Reader()
        self._hpack = HpackDecoder()
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._out: list[bytes] = []
        self._busy = False
        self._window = DEFAULT_WINDOW
        self._peer_window = DEFAULT_WINDOW
        self._peer_frame = FRAME_BYTES
        self._taken = 0
        self._stuck: dict[int, Call] = {}
        """Calls that have more to say than the connection takes."""
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False
        self._refusing = False
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        # uvloop's transports have the methods of `asyncio.Transport` but not its type.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._limits.connections.add(self)
        self._wait(GREETING_S)
        self._write(
            settings_frame(
                {
                    Setting.MAX_CONCURRENT_STREAMS: self._limits.calls,
                    Setting.INITIAL_WINDOW_SIZE: CALL_WINDOW,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
                }
            )
            + number_frame(Kind.WINDOW_UPDATE, 0, LINE_WINDOW - DEFAULT_WINDOW)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._transport = None
        self._limits.connections.discard(self)
        self._limits.left.set()
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._calls.values()):
            self._forget(call)

    def pause_writing(self) -> None:
        """Read no more from a peer that does not read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Handle every frame that is whole."""
        self._heard = True
        self._busy = True
        try:
            for kind, flags, stream, payload in self._reader.frames(data):
                if self._ended:
                    return
                self._on_frame(kind, flags, stream, payload)
        except Http2Error as error:
            self._fail(error.code, str(error))
        except HpackError as error:
            self._fail(Code.COMPRESSION_ERROR, str(error))
        finally:
            self._busy = False
            self._flush()

    def leave(self) -> None:
        """Ask the peer to open no more calls here; the connection ends with the last one."""
        if not self._leaving:
            self._leaving = True
            # What is on its way already is served: the answer tells that nothing more comes.
            self._write(goaway_frame(MAX_WINDOW, Code.NO_ERROR) + frame(Kind.PING, 0, 0, _FAREWELL))

    def cut(self) -> None:
        """End all calls and the connection."""
        for call in list(self._calls.values()):
            self._reset(call)
        self._end()

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == Kind.DATA:
            self._on_data(flags, stream, payload)
        elif kind == Kind.HEADERS:
            self._on_headers(flags, stream, payload)
        elif kind == Kind.WINDOW_UPDATE:
            self._on_window(stream, payload)
        elif kind == Kind.RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == Kind.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == Kind.PING:
            self._on_ping(flags, payload)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "clients push nothing")

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._taken += size
        if self._taken >= LINE_WINDOW // 2:
            self._write(number_frame(Kind.WINDOW_UPDATE, 0, self._taken))
            self._taken = 0
        call = self._known(stream)
        if call is None:
            return
        if call.heard_all:
            self._reset(call)
            return
        call.due += size
        if call.due > CALL_WINDOW:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more than the call's window")
        call.heard_all = bool(flags & END_STREAM)
        self._deliver(call, unpadded(flags, payload))
        if call.heard_all:
            self._hear_all(call)
        else:
            self.go_on(call)

    def _deliver(self, call: Call, data: bytes) -> None:
        limits, before = self._limits, call.inbox.held
        try:
            messages = call.inbox.take(data)
        except TooLongError as error:
            call.finish(Status.RESOURCE_EXHAUSTED, str(error))
            return
        finally:
            limits.held += call.inbox.held - before
        if limits.held > limits.held_bytes:
            call.finish(Status.RESOURCE_EXHAUSTED, "too many incomplete messages")
            return
        for message in messages:
            if call.handler is not None and call.open and not call.trailers:
                call.handler.received(message)

    def _hear_all(self, call: Call) -> None:
        call.heard_all = True
        if call.handler is not None and call.open and not call.trailers:
            call.handler.ended()

    def go_on(self, call: Call) -> None:
        """Let the peer send more of a call, if it is time, unless it leaves too much unread."""
        if call.due < CALL_WINDOW // 2 or call.waiting or not call.open or call.heard_all:
            return
        if len(call.backlog) <= MAX_BACKLOG_BYTES:
            self._write(number_frame(Kind.WINDOW_UPDATE, call.number, call.due))
            call.due = 0

    def _on_headers(self, flags: int, stream: int, block: bytes) -> None:
        if stream % 2 == 0:
            raise Http2Error(Code.PROTOCOL_ERROR, "a stream that is no client's")
        headers = self._hpack.decode(block)
        if stream <= self._last:
            call = self._calls.get(stream)
            if call is not None and flags & END_STREAM and not call.heard_all:
                self._hear_all(call)
            elif call is not None:
                self._reset(call)
            return
        self._last = stream
        if self._refusing or self._limits.open >= self._limits.calls:
            self._write(number_frame(Kind.RST_STREAM, stream, Code.REFUSED_STREAM))
            return
        call = Call(self, stream, self._peer_window, self._limits.message_bytes)
        self._calls[stream] = call
        self._limits.open += 1
        service = self._services.get(dict(headers).get(b":path", b""))
        if service is None:
            call.finish(Status.UNIMPLEMENTED, "no such method")
            return
        call.handler = service(call)
        if flags & END_STREAM:
            self._hear_all(call)

    def _on_reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "a reset of another length")
        call = self._known(stream)
        if call is not None:
            self._forget(call)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        if len(payload) % 6:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "settings of another length")
        for place in range(0, len(payload), 6):
            name = int.from_bytes(payload[place : place + 2], "big")
            value = int.from_bytes(payload[place + 2 : place + 6], "big")
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._resize(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES <= value < 2**24:
                    raise Http2Error(Code.PROTOCOL_ERROR, "no such size of frames")
                self._peer_frame = min(value, 4 * FRAME_BYTES)
        self._write(frame(Kind.SETTINGS, ACK, 0))

    def _resize(self, window: int) -> None:
        if window > MAX_WINDOW:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "no such window")
        more, self._peer_window = window - self._peer_window, window
        for call in list(self._calls.values()):
            call.window += more
            self.pump(call)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "a ping of another length")
        if not flags & ACK:
            self._write(frame(Kind.PING, ACK, 0, payload))
        elif payload == _FAREWELL and self._leaving:
            self._refusing = True
            self._write(goaway_frame(self._last, Code.NO_ERROR))
            self._end_if_idle()

    def _on_window(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "a window of another length")
        more = int.from_bytes(payload, "big") & MAX_WINDOW
        if stream == 0:
            self._window += more
            if not more or self._window > MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "no such window")
            stuck, self._stuck = self._stuck, {}
            for call in stuck.values():
                self.pump(call)
            return
        named = self._known(stream)
        if named is None:
            return
        named.window += more
        if not more or named.window > MAX_WINDOW:
            self._reset(named)
        else:
            self.pump(named)

    def _known(self, stream: int) -> Call | None:
        """Return an open call; None for one that is over. Raises `Http2Error` for any other."""
        if stream == 0 or stream > self._last:
            raise Http2Error(Code.PROTOCOL_ERROR, "a stream that nobody opened")
        return self._calls.get(stream)

    def opened(self, call: Call) -> None:
        """Send the head of an answer."""
        self._write(frame(Kind.HEADERS, END_HEADERS, call.number, HEAD))

    def pump(self, call: Call) -> None:
        """Send of a call's backlog what the peer takes, and then its end if that is due."""
        backlog = call.backlog
        while backlog and call.open:
            size = min(len(backlog), self._peer_frame, call.window, self._window)
            if size <= 0:
                if call.window > 0:
                    self._stuck[call.number] = call
                return
            self._write(frame(Kind.DATA, 0, call.number, bytes(backlog[:size])))
            del backlog[:size]
            call.window -= size
            self._window -= size
        if call.trailers and call.open:
            flags = END_HEADERS | END_STREAM
            self._write(frame(Kind.HEADERS, flags, call.number, call.trailers))
            if not call.heard_all:
                self._write(number_frame(Kind.RST_STREAM, call.number, Code.NO_ERROR))
            self._forget(call)
        else:
            self.go_on(call)

    def _reset(self, call: Call) -> None:
        self._write(number_frame(Kind.RST_STREAM, call.number, Code.CANCEL))
        self._forget(call)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.number, None) is None:
            return
        self._stuck.pop(call.number, None)
        self._limits.open -= 1
        self._limits.held -= call.inbox.held
        call.close()
        self._end_if_idle()

    def _fail(self, code: Code, message: str) -> None:
        self._write(goaway_frame(self._last, code, message))
        self._end()

    def _end_if_idle(self) -> None:
        if self._refusing and not self._calls:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._look, seconds == PATIENCE_S)

    def _look(self, asked: bool) -> None:
        """End a connection whose peer is silent."""
        heard, self._heard = self._heard, False
        if not self._reader.greeted or (asked and not heard):
            if self._transport is not None:
                self._transport.abort()
            return
        if heard:
            self._wait(QUIET_S)
            return
        self._write(frame(Kind.PING, 0, 0, _PING))
        self._wait(PATIENCE_S)

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._busy:
            self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()
