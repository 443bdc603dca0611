"""Fetches a page of an engine or of Envoy, at a small part of what a general HTTP client costs."""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

MAX_PAGE_BYTES = 16 * 1_048_576
TIMEOUT_S = 2.0

_OK = 200
ENGINE_TARGET = "/metrics?name[]=vllm:num_requests_running&name[]=vllm:num_requests_waiting"
"""Servers that know the filter of Prometheus' Python client send these two alone."""


class PageError(Exception):
    """The server can't be reached, or what it answers is no page."""


class _Page(asyncio.Protocol):
    """One connection for one page; ``done`` is its body."""

    def __init__(self, address: str, target: str) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._question = f"GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast("asyncio.Transport", transport).write(self._question.encode())

    def data_received(self, data: bytes) -> None:
        """Take a part of the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that no more comes."""
        self._fail(f"closed: {exc}")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += body
        if len(self._body) > MAX_PAGE_BYTES:
            self._fail("no end")

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        status = self._parser.get_status_code()
        if status != _OK:
            self._fail(f"status {status}")
        elif not self.done.done():
            self.done.set_result(bytes(self._body))

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(PageError(why))


async def fetch_page(host: str, port: int, address: str, target: str = ENGINE_TARGET) -> bytes:
    """Return a page in `TIMEOUT_S` seconds. Raises `PageError`.

    ``address`` is ``host:port`` as the server is called.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            transport, page = await loop.create_connection(
                lambda: _Page(address, target), host, port
            )
            try:
                return await page.done
            finally:
                transport.abort()
    except (OSError, TimeoutError) as error:
        raise PageError(str(error)) from error
