"""Clients that stream without end, each on a connection of its own, and retry nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from e2e.router.samples import CHAT
from e2e.waiting import until

STREAM = b"data: first\n\ndata: last\n\n"


@dataclass
class StreamLoad:
    """Counts whole streams, and says what became of the others.

    ``door`` gives the address for a new connection, as a Service does; a connection that is open
    stays where it is until the router closes it.
    """

    door: Callable[[], str]
    body: Callable[[], dict[str, Any]]
    headers: dict[str, str] = field(default_factory=dict)
    whole: int = 0
    lost: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator[None]:
        """Keep so many clients at it meanwhile."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(self._client(stopping))
            try:
                yield
            finally:
                stopping.set()

    async def more(self, streams: int) -> None:
        """Wait until so many more streams are whole."""
        wanted = self.whole + streams

        async def done() -> bool:
            return self.whole >= wanted or bool(self.lost)

        await until(done, f"{streams} more streams")
        assert not self.lost, self.lost[:3]

    async def _client(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            base = self.door()
            async with httpx.AsyncClient(timeout=30.0, trust_env=False) as client:
                while not stopping.is_set() and await self._stream(client, base):
                    pass

    async def _stream(self, client: httpx.AsyncClient, base: str) -> bool:
        """Read one stream; return whether its connection goes on."""
        headers = {**self.headers, "x-test-stream": "1", "x-test-pause": "0.1"}
        request = client.build_request("POST", f"{base}{CHAT}", json=self.body(), headers=headers)
        try:
            response = await client.send(request, stream=True)
            text = await response.aread()
        except httpx.HTTPError as error:
            self.lost.append(repr(error))
            return False
        if response.status_code == httpx.codes.OK and text == STREAM:
            self.whole += 1
        else:
            self.lost.append(f"{response.status_code} {text!r}")
        return "close" not in response.headers.get_list("connection")
