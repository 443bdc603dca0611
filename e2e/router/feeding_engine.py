"""A fake engine with a cache: it tokenizes, holds the prompts it was sent, and feeds routers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from e2e.router.fake_engine import FakeEngine
from promptprefix.block_door import Door
from promptprefix.block_stream import (
    BLOCKS_PATH,
    Alive,
    BlockKeys,
    Cleared,
    Hello,
    Whole,
    added,
    chain,
    encode,
    root_name,
)

KEY = bytes(range(32))
KEYS = BlockKeys.of(KEY)
BLOCK_SIZE = 16
ALIVE_S = 0.5
_BYTES = 4


def tokens_of(text: str) -> list[int]:
    """Return a token for each four bytes of a text."""
    encoded = text.encode()
    parts = (encoded[at : at + _BYTES] for at in range(0, len(encoded), _BYTES))
    return [int.from_bytes(part, "little") for part in parts]


def rendered(body: dict[str, Any]) -> list[int]:
    """Return the tokens of a request, however its JSON is spelled."""
    if "prompt" in body:
        prompt = body["prompt"]
        return prompt if isinstance(prompt, list) else tokens_of(prompt)
    return tokens_of(json.dumps([body.get("tools"), body["messages"]], sort_keys=True))


@dataclass
class FeedingEngine(FakeEngine):
    """``uid`` is its pod's. ``bases`` are names of the base model; others are adapters."""

    bases: tuple[str, ...] = ()
    blocks_port: int = 0
    rendering: bool = True
    """Whether ``/tokenize`` answers."""
    rendered: int = 0
    epoch: int = 1
    _cached: list[tuple[str, str, list[int]]] = field(default_factory=list)
    _feeds: dict[asyncio.Queue[bytes | None], int] = field(default_factory=dict)
    _blocks: web.AppRunner | None = None

    @property
    def uid(self) -> str:
        """Uid of its pod."""
        return f"uid-{self.name}"

    async def start(self) -> Self:
        """Listen on both ports."""
        await super().start()
        self._door = Door(self.uid, 0.0)
        await self.start_feed()
        return self

    async def stop(self) -> None:
        """Close both."""
        await self.stop_feed()
        await super().stop()

    async def start_feed(self) -> None:
        """Have a sidecar."""
        app = web.Application()
        app.router.add_get(BLOCKS_PATH, self._feed)
        self._blocks = web.AppRunner(app, shutdown_timeout=0.1)
        await self._blocks.setup()
        await web.TCPSite(self._blocks, "127.0.0.1", self.blocks_port).start()
        self.blocks_port = self._blocks.addresses[0][1]

    async def stop_feed(self) -> None:
        """End the sidecar alone."""
        self._tell(None)
        if self._blocks is not None:
            await self._blocks.cleanup()
            self._blocks = None

    def reset(self) -> None:
        """Empty the cache, and tell of it."""
        self._cached.clear()
        self._tell(encode(Cleared()))

    def restart(self) -> None:
        """Be another engine in the same pod, and tell of it."""
        self._cached.clear()
        self.epoch += 1
        for feed, every in self._feeds.items():
            feed.put_nowait(self._hello(every) + encode(Whole()))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/tokenize":
            assert "authorization" not in request.headers
            if not self.rendering:
                return web.Response(status=500)
            self.rendered += 1
            return web.json_response({"tokens": rendered(await request.json())})
        response = await super()._answer(request)
        if self.seen[-1].body and request.path.endswith("completions"):
            body = json.loads(self.seen[-1].body)
            self._store(body["model"], body.get("cache_salt", ""), rendered(body))
        return response

    def _store(self, model: str, salt: str, tokens: list[int]) -> None:
        prompt = (model, salt, tokens)
        self._cached.append(prompt)
        for feed, every in self._feeds.items():
            feed.put_nowait(b"".join(added(self._names([prompt], every))))

    def _names(self, prompts: Iterable[tuple[str, str, list[int]]], every: int) -> set[bytes]:
        found: set[bytes] = set()
        for model, salt, tokens in prompts:
            root = root_name(KEYS, "" if model in self.bases else model, salt)
            found.update(chain(KEYS, root, tokens, BLOCK_SIZE)[every - 1 :: every])
        return found

    def _hello(self, every: int) -> bytes:
        return encode(Hello(str(self.epoch), BLOCK_SIZE, every, self.bases))

    def _tell(self, piece: bytes | None) -> None:
        for feed in self._feeds:
            feed.put_nowait(piece)

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        every = int(request.query["every"])
        value = request.headers.get("authorization")
        if not self._door.admits(KEYS, value, every, time.time()):
            return web.Response(status=401)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        feed: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._feeds[feed] = every
        held = b"".join(added(self._names(self._cached, every)))
        piece: bytes | None = self._hello(every) + held + encode(Whole())
        try:
            while piece is not None:
                await response.write(piece)
                try:
                    piece = await asyncio.wait_for(feed.get(), ALIVE_S)
                except TimeoutError:
                    piece = encode(Alive())
        finally:
            del self._feeds[feed]
        return response
