"""A client's HTTP/1.1 connection: one question at a time, at little cost.

It is for engines, Envoy's load and workers, which are asked all the time. A prompt of 8 kB and its
2,000 tokens take 0.05 ms of processor time on a kept connection; by httpx, which asks for
everything else, 1.6 ms and more.
"""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple, Self, cast

import httptools


class UnreachableError(Exception):
    """The peer can't be reached, or what it answers is no HTTP or too long."""


class StaleError(UnreachableError):
    """A connection that was used before was closed before the peer said anything more."""


class Answer(NamedTuple):
    """What a peer said."""

    status: int
    body: bytes


class HttpConnection(asyncio.Protocol):
    """Answers' bodies are at most ``limit`` bytes long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._body = bytearray()
        self._silent = True
        self._used = False
        self.kept = False
        """Whether the peer takes another question."""

    @classmethod
    async def open(cls, host: str, port: int, limit: int) -> Self:
        """Connect. Raises `UnreachableError`."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: cls(limit), host, port)
        except OSError as error:
            raise UnreachableError(str(error)) from error
        return connection

    @classmethod
    async def over(cls, end: socket.socket, limit: int) -> Self:
        """Go over a socket that is connected."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(limit), sock=end)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    async def get(self, address: str, target: str, *, keep: bool = True) -> Answer:
        """Return the answer to a GET. Raises `UnreachableError`."""
        last = "" if keep else "connection: close\r\n"
        return await self.ask(f"GET {target} HTTP/1.1\r\nhost: {address}\r\n{last}\r\n".encode())

    async def post_json(self, address: str, target: str, body: bytes) -> Answer:
        """Return the answer to a POST of JSON. Raises `UnreachableError`."""
        head = (
            f"POST {target} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return await self.ask(head.encode() + body)

    async def ask(self, question: bytes) -> Answer:
        """Return the answer to a request in its bytes. Raises `UnreachableError`."""
        stale = self._used
        if self._transport is None or self._transport.is_closing():
            raise StaleError("closed")
        self._used, self.kept = True, False
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._silent = True
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        try:
            return await self._answer
        except UnreachableError as error:
            if stale and self._silent:
                raise StaleError(str(error)) from error
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of the answer."""
        if self._answer is None:
            self.close()
            return
        self._silent = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that no more comes."""
        self._transport = None
        self._fail(f"closed: {exc}")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += body
        if len(self._body) > self._limit:
            self._fail("no end")

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        self.kept = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(UnreachableError(why))
