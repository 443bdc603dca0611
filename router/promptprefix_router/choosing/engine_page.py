"""Fetches a page of an engine or of Envoy."""

from __future__ import annotations

import asyncio

from promptprefix_router.http_connection import HttpConnection, UnreachableError

MAX_PAGE_BYTES = 16 * 1_048_576
TIMEOUT_S = 2.0

_OK = 200
ENGINE_TARGET = "/metrics?name[]=vllm:num_requests_running&name[]=vllm:num_requests_waiting"
"""Servers that know the filter of Prometheus' Python client send these two alone."""


class PageError(Exception):
    """The server can't be reached, or what it answers is no page."""


async def fetch_page(host: str, port: int, address: str, target: str = ENGINE_TARGET) -> bytes:
    """Return a page in `TIMEOUT_S` seconds. Raises `PageError`.

    ``address`` is ``host:port`` as the server is called.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            connection = await HttpConnection.open(host, port, MAX_PAGE_BYTES)
            try:
                status, page = await connection.get(address, target, keep=False)
            finally:
                connection.close()
    except (UnreachableError, TimeoutError) as error:
        raise PageError(str(error)) from error
    if status != _OK:
        raise PageError(f"status {status}")
    return page
