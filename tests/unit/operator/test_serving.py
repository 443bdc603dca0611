"""Ports that the operator serves: connections that say nothing are closed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from promptprefix_operator import serving


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.02)
    async with AsyncExitStack() as stack:
        port = await serving.listen(stack, web.Application(), "127.0.0.1", 0)
        for sent in (b"", b"GET / HTTP/1.1\r\nHo"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
