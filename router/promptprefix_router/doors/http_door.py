"""A small HTTP/1.1 server: requests with a bounded head and body, answered in order.

It serves Envoy's questions and the metrics. A handler is a plain function that answers at once, or
returns what does later: the connection reads nothing until then.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, cast

import httptools

MAX_HEAD_BYTES = 128 * 1024
"""Bytes of target and headers together; Envoy itself sends at most 60 KiB of headers."""

MAX_GUESTS = 256
"""Connections of a public door; the one that came first makes room for the next."""
PATIENCE_S = 10.0
"""How long a connection of a public door lives."""
CLOSING = ("connection", "close")
"""Said of the last answer, so that a client does not ask again on a connection that ends."""


class HttpRequest(NamedTuple):
    """One whole request; header names are lower-case."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True)
class HttpResponse:
    """One whole response. It is put into bytes once, however often it is given."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the response as HTTP/1.1 bytes."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append(f"content-length: {len(self.body)}\r\n\r\n")
        return "\r\n".join(lines).encode("latin-1") + self.body


BACKLOG = 4096
"""Connections that may wait to be taken. Envoy dials for each request at a time, and beyond this
the kernel refuses it at a Unix socket, at once. Linux itself allows so many by default."""

Handler = Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]


class HttpDoor(asyncio.Protocol):
    """One connection. Broken or oversized input ends it; the peer sees a 4xx where it can.

    ``guests`` are all connections of a public door, oldest first. There anybody may knock, so each
    gets one answer and has `PATIENCE_S` to ask and to listen; otherwise idle, slow or pipelining
    strangers would use up the memory and the time of the process.
    """

    def __init__(
        self, handler: Handler, max_body_bytes: int, guests: dict[HttpDoor, None] | None = None
    ) -> None:
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._guests = guests
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._finished: deque[tuple[HttpRequest, bool]] = deque()
        self._waiting: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection's transport."""
        # uvloop's transports have the methods of `asyncio.Transport` but not its type.
        self._transport = cast("asyncio.Transport", transport)
        if self._guests is None:
            return
        if len(self._guests) >= MAX_GUESTS:
            next(iter(self._guests)).leave()
        self._guests[self] = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self.leave)

    def leave(self) -> None:
        """End the connection at once."""
        if self._guests is not None:
            self._guests.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the transport; nobody waits for an answer any more."""
        self._transport = None
        self._finished.clear()
        if self._waiting is not None:
            # It has begun by then: what it waits for ends with it.
            asyncio.get_running_loop().call_soon(self._waiting.cancel)
        self.leave()

    def data_received(self, data: bytes) -> None:
        """Parse what came and answer every request that is whole."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserError:
            too_large = self._head_bytes > MAX_HEAD_BYTES or self._body_bytes > self._max_body_bytes
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
            )
        self._answer_finished()

    def _answer_finished(self) -> None:
        while self._finished and self._waiting is None:
            self._answer(*self._finished.popleft())

    def _answer(self, request: HttpRequest, keep_alive: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        answer = self._handler(request)
        if isinstance(answer, HttpResponse):
            self._write(answer, keep_alive)
            return
        self._transport.pause_reading()
        self._waiting = asyncio.get_running_loop().create_task(self._wait(answer, keep_alive))

    async def _wait(self, answer: Awaitable[HttpResponse], keep_alive: bool) -> None:
        try:
            response = await answer
        except BaseException:
            self.leave()
            raise
        self._waiting = None
        self._write(response, keep_alive)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._answer_finished()

    def _write(self, answer: HttpResponse, keep_alive: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if keep_alive and self._guests is None:
            self._transport.write(answer.encode())
            return
        self._transport.write(replace(answer, headers=(*answer.headers, CLOSING)).encode())
        self._transport.close()

    def _refuse(self, status: HTTPStatus) -> None:
        self._finished.clear()
        if self._transport is not None:
            self._transport.write(HttpResponse(status, (CLOSING,)).encode())
            self._transport.close()

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        self._begin()

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the target."""
        self._target += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("head too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a header. The first of equal names counts."""
        self._headers.setdefault(name.lower(), value)
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("head too large")

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            raise ValueError("body too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        request = HttpRequest(
            self._parser.get_method().decode("latin-1"),
            self._target.decode("latin-1"),
            self._headers,
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
        )
        # The parser forgets after this call whether the peer wants to go on.
        self._finished.append((request, self._parser.should_keep_alive()))


async def open_door(
    handler: Handler,
    host: str,
    port: int,
    max_body_bytes: int = 64 * 1024,
    *,
    public: bool = False,
    shared: bool = False,
) -> asyncio.Server:
    """Listen on ``host`` and ``port``; raise `OSError` if they can't be had.

    ``shared``: with other processes that do so, among which the kernel spreads the connections.
    """
    loop = asyncio.get_running_loop()
    guests: dict[HttpDoor, None] | None = {} if public else None
    return await loop.create_server(
        lambda: HttpDoor(handler, max_body_bytes, guests),
        host,
        port,
        backlog=BACKLOG,
        reuse_port=shared,
    )


async def open_local_door(handler: Handler, path: Path, max_body_bytes: int) -> asyncio.Server:
    """Listen on the Unix socket ``path``, in the place of one that was left there.

    Who reaches its folder may ask: the peer is another container, maybe of another user.
    Raises `OSError` if it can't be had.
    """
    loop = asyncio.get_running_loop()
    listening = _socket_file(path)
    return await loop.create_unix_server(
        lambda: HttpDoor(handler, max_body_bytes), sock=listening, backlog=BACKLOG
    )


def _socket_file(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.bind(str(path))
    path.chmod(0o666)
    return found
