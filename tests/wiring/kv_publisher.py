"""An engine's event publisher: real sockets that do what vLLM's do, and misbehave on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


@dataclass
class KvPublisher:
    """``ring``: how many batches it can replay. ``answer``: how many it sends at once, at most."""

    events: str
    replay: str
    topic: str = "kv"
    ring: int = 100
    answer: int = 1000
    mute: bool = False
    sent: int = 0
    at: float = 0.0
    asked: list[int] = field(default_factory=list)
    _kept: deque[tuple[int, bytes]] = field(default_factory=deque)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[KvPublisher]:
        context = zmq.asyncio.Context()
        self._pub = context.socket(zmq.XPUB)
        self._pub.set_hwm(100)
        self._router = context.socket(zmq.ROUTER)
        answers: asyncio.Task[None] | None = None
        try:
            self._pub.bind(self.events)
            self._router.bind(self.replay)
            answers = asyncio.create_task(self._answer())
            yield self
        finally:
            if answers is not None:
                answers.cancel()
                await asyncio.wait({answers})
            context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Wait until a subscription has arrived: what is sent before is lost, as with vLLM."""
        await self._pub.recv()

    async def publish(self, *events: object, lose: bool = False, **more: object) -> None:
        """Send one batch; ``lose``: only the replay has it."""
        self.at += 1.0
        payload = msgspec.msgpack.encode([self.at, list(events), *more.values()])
        await self.publish_bytes(payload, lose=lose)

    async def publish_bytes(self, payload: bytes, *, lose: bool = False) -> None:
        number, self.sent = self.sent, self.sent + 1
        self._kept.append((number, payload))
        while len(self._kept) > self.ring:
            self._kept.popleft()
        if not lose:
            await self.send([self.topic.encode(), number.to_bytes(8, "big"), payload])

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._pub.send_multipart(frames)

    async def send_again(self, number: int) -> None:
        payload = dict(self._kept)[number]
        await self.send([self.topic.encode(), number.to_bytes(8, "big"), payload])

    async def _answer(self) -> None:
        while True:
            client, _, first = await self._router.recv_multipart()
            start = int.from_bytes(first, "big")
            self.asked.append(start)
            if self.mute:
                continue
            found = [(number, payload) for number, payload in self._kept if number >= start]
            for number, payload in found[: self.answer]:
                frames = [client, b"", self.topic.encode(), number.to_bytes(8, "big"), payload]
                await self._router.send_multipart(frames)
            if len(found) <= self.answer:
                await self._router.send_multipart([client, b"", b"", END, b""])


def publisher_in(folder: Path) -> KvPublisher:
    return KvPublisher(f"ipc://{folder}/events", f"ipc://{folder}/replay")
