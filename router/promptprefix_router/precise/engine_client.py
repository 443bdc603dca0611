"""Posts small questions to engines, on connections that are kept, at little cost."""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

MOST_IDLE = 4
"""Connections of one engine that are kept for the next question."""

_TOO_OLD_S = 4.0
"""Servers close idle connections, uvicorn after 5 s."""


class UnreachableError(Exception):
    """The engine can't be reached, or what it answers is no HTTP or too long."""


class StaleError(UnreachableError):
    """A kept connection was closed before the engine said anything."""


class _Connection(asyncio.Protocol):
    """One connection with one question at a time. Answers are at most ``limit`` bytes long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body = bytearray()
        self._used = False
        self.idle_since = 0.0
        self.kept = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, question: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer; raise `UnreachableError`."""
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
            self._answer.set_result((self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(UnreachableError(why))


class EngineClient:
    """Connections to engines by address. ``limit`` bounds an answer's body, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[str, list[_Connection]] = {}

    async def post(
        self, host: str, port: int, address: str, path: str, body: bytes
    ) -> tuple[int, bytes]:
        """Return status and body of the answer to JSON; raise `UnreachableError`.

        ``address`` is ``host:port`` as the engine is called. Cancelling ends the connection.
        """
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        question = head.encode() + body
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._ask(address, kept, question)
            except StaleError:
                # Nothing was read there; tokens can be asked for twice.
                pass
        try:
            loop = asyncio.get_running_loop()
            _, fresh = await loop.create_connection(lambda: _Connection(self._limit), host, port)
        except OSError as error:
            raise UnreachableError(str(error)) from error
        return await self._ask(address, fresh, question)

    def retain(self, addresses: frozenset[str]) -> None:
        """Close what is kept of other engines."""
        for address in self._idle.keys() - addresses:
            for connection in self._idle.pop(address):
                connection.close()

    async def _ask(
        self, address: str, connection: _Connection, question: bytes
    ) -> tuple[int, bytes]:
        try:
            answer = await connection.ask(question)
        except BaseException:
            connection.close()
            raise
        idle = self._idle.setdefault(address, [])
        if connection.kept and len(idle) < MOST_IDLE:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self, address: str) -> _Connection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if asyncio.get_running_loop().time() - connection.idle_since < _TOO_OLD_S:
                return connection
            connection.close()
        return None
