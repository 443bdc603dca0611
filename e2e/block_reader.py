"""A router's side of a feed of block names, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp

from promptprefix.block_door import NONCE_BYTES, authorization
from promptprefix.block_stream import (
    BLOCKS_PATH,
    Added,
    BlockKeys,
    Cleared,
    Decoder,
    Hello,
    Removed,
    Whole,
)


def proof(keys: BlockKeys, pod_uid: str, every: int = 1, at: float | None = None) -> str:
    """Return an authorization value, of now or another time."""
    now = time.time() if at is None else at
    return authorization(keys, pod_uid, every, now, secrets.token_bytes(NONCE_BYTES))


@dataclass
class BlockReader:
    """What a feed has told: ``held``, under which ``hello``."""

    every: int
    hello: Hello | None = None
    whole: bool = False
    ended: bool = False
    held: set[bytes] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._decoder = Decoder(self.every)

    async def until(self, condition: Callable[[BlockReader], object], within: float = 20) -> None:
        """Wait until what it knows satisfies the condition."""
        async with asyncio.timeout(within):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def read(self, response: aiohttp.ClientResponse) -> None:
        """Read until the feed ends."""
        with contextlib.suppress(aiohttp.ClientError):
            async for data in response.content.iter_any():
                self._take(data)
        self.ended = True
        self._changed.set()

    def _take(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            match frame:
                case Hello():
                    self.hello, self.whole, self.held = frame, False, set()
                case Added(names):
                    self.held |= set(names)
                case Removed(names):
                    self.held -= set(names)
                case Cleared():
                    self.held.clear()
                case Whole():
                    self.whole = True
        self._changed.set()


@contextlib.asynccontextmanager
async def reading(
    port: int, keys: BlockKeys, pod_uid: str, every: int = 1
) -> AsyncIterator[BlockReader]:
    """Read a feed on loopback."""
    reader = BlockReader(every)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(
            f"http://127.0.0.1:{port}{BLOCKS_PATH}?every={every}",
            headers={"authorization": proof(keys, pod_uid, every)},
        ) as response,
    ):
        assert response.status == 200, response.status
        task = asyncio.create_task(reader.read(response))
        try:
            yield reader
        finally:
            task.cancel()
            await asyncio.wait({task})


async def status_of(port: int, value: str | None, query: str = "every=1") -> int:
    """Return how the feed answers to an authorization value."""
    headers = {} if value is None else {"authorization": value}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{BLOCKS_PATH}?{query}", headers=headers) as response,
    ):
        if response.status != 200:
            assert await response.read() == b""
        return response.status
