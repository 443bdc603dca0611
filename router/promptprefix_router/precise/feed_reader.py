"""Reads the feed of one pod's blocks for as long as the pod is known."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import structlog

from promptprefix.block_door import NONCE_BYTES, authorization
from promptprefix.block_stream import (
    ALIVE_S,
    BLOCKS_PATH,
    DEFAULT_EVERY,
    Added,
    BlockKeys,
    Cleared,
    Decoder,
    Frame,
    Hello,
    Removed,
    StreamError,
    Whole,
)
from promptprefix.redial import CONNECT_TIMEOUT_S
from promptprefix_router.control.control_link import BACKOFF, Backoff
from promptprefix_router.precise.pod_blocks import PodBlocks

SILENCE_S = 3 * ALIVE_S
"""A feed that says nothing for so long is lost."""

MOST_BEGINNINGS = 60
BEGINNINGS_S = 60.0
"""So often a feed may begin anew, or be emptied, in so many seconds. Each time the index has to be
swept: a feed that does nothing else would outrun that."""

DIALS_AT_ONCE = 16
"""Feeds that are asked for, and have not answered, at a time."""


class RefusedError(Exception):
    """The sidecar answered with something else than a feed."""


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """Where a pod's feed is. ``pod`` is the address of its engine, by which it is known."""

    pod: str
    pod_uid: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """Address of the feed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{BLOCKS_PATH}"


class FeedReader:
    """Follows one feed. While it is lost nothing is believed of the pod's blocks.

    ``dials`` bounds how many feeds are asked for at a time. ``clock`` is Unix seconds. ``heard`` is
    told a fixed word of each feed that began or ended.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        address: FeedAddress,
        keys: BlockKeys,
        blocks: PodBlocks,
        dials: asyncio.Semaphore,
        clock: Callable[[], float],
        heard: Callable[[str], None],
        *,
        silence_s: float = SILENCE_S,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._address = address
        self._keys = keys
        self._blocks = blocks
        self._dials = dials
        self._clock = clock
        self._heard = heard
        self._timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=silence_s)
        self._backoff = backoff
        self._sleep = sleep
        self._failures = 0
        self._beginnings = 0
        self._since = -BEGINNINGS_S
        self._log = structlog.get_logger("feeds")

    async def run(self) -> None:
        """Follow the feed until cancelled; what it said is forgotten then."""
        try:
            while True:
                try:
                    await self._follow()
                    result = "ended"
                except httpx.TimeoutException:
                    result = "silent"
                except (httpx.HTTPError, OSError):
                    result = "unreachable"
                except RefusedError:
                    result = "refused"
                except StreamError:
                    result = "invalid"
                self._lost(result)
                await self._sleep(self._backoff.delay(self._failures))
        finally:
            self._blocks.lose(self._address.pod)

    def _lost(self, result: str) -> None:
        self._blocks.lose(self._address.pod)
        self._heard(result)
        self._failures += 1
        if self._failures == 1:
            self._log.warning("feed of blocks lost", pod=self._address.pod, result=result)

    async def _follow(self) -> None:
        decoder = Decoder(DEFAULT_EVERY)
        await self._dials.acquire()
        waiting = True
        try:
            async with self._client.stream(
                "GET",
                self._address.url,
                params={"every": str(DEFAULT_EVERY)},
                headers={"authorization": self._proof(), "accept-encoding": "identity"},
                timeout=self._timeout,
            ) as response:
                self._dials.release()
                waiting = False
                if response.status_code != httpx.codes.OK:
                    raise RefusedError
                async for data in response.aiter_raw():
                    for frame in decoder.feed(data):
                        self._take(frame)
        finally:
            if waiting:
                self._dials.release()

    def _proof(self) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        uid, now = self._address.pod_uid, self._clock()
        return authorization(self._keys, uid, DEFAULT_EVERY, now, nonce)

    def _take(self, frame: Frame) -> None:
        pod, blocks = self._address.pod, self._blocks
        match frame:
            case Hello():
                self._begins()
                blocks.begin(pod, frame)
            case Added(names):
                blocks.add(pod, names)
            case Removed(names):
                blocks.remove(pod, names)
            case Cleared():
                self._begins()
                blocks.clear(pod)
            case Whole():
                blocks.finish(pod)
                self._heard("whole")
                if self._failures:
                    self._log.info("feed of blocks is back", pod=pod)
                self._failures = 0

    def _begins(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since >= BEGINNINGS_S:
            self._since, self._beginnings = now, 0
        self._beginnings += 1
        if self._beginnings > MOST_BEGINNINGS:
            raise StreamError("a feed that begins anew too often")
