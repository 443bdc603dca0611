"""Feeds of pods, read through the codec: beginnings, changes, silence, restarts, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from structlog.testing import capture_logs

from promptprefix.block_door import Door
from promptprefix.block_stream import (
    BLOCKS_PATH,
    DEFAULT_EVERY,
    Alive,
    BlockKeys,
    Cleared,
    Hello,
    Whole,
    added,
    encode,
    removed,
)
from promptprefix.wire import BlocksKey, RouteEndpoint, RouteTable
from promptprefix_router.control.control_link import Backoff
from promptprefix_router.control.routes import Routes
from promptprefix_router.precise.block_index import BlockIndex
from promptprefix_router.precise.feed_keeper import FeedKeeper
from promptprefix_router.precise.feed_reader import MOST_BEGINNINGS, FeedAddress, FeedReader
from promptprefix_router.precise.pod_blocks import FeedState, PodBlocks
from promptprefix_router.precise.prompt_tokens import PromptTokens

from .samples import MODEL, TENANT, endpoint, table

KEY = bytes(range(32))
KEYS = BlockKeys.of(KEY)
POD = "10.0.0.1:8000"
ADDRESS = FeedAddress(POD, "uid-1", "10.0.0.1", 8091)
HELLO = Hello("e1", 16, DEFAULT_EVERY, (MODEL,))
PROMPT = PromptTokens.of(MODEL, list(range(64 * 3 + 1)))
NAMES = list(PROMPT.names(KEYS, 16, DEFAULT_EVERY, adapter=False))
WHOLE = encode(HELLO) + b"".join(added(NAMES)) + encode(Whole())


class Feed(httpx.AsyncByteStream):
    """One feed: pieces that a test sends; None ends it, an exception breaks it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the pieces as they come."""
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Sidecar:
    """Answers each question with a new feed, or with a status."""

    def __init__(self) -> None:
        self.status = 200
        self.feeds: list[Feed] = []
        self.door = Door("uid-1", 0.0)
        self.asked = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Let in who has the key."""
        self.asked += 1
        assert request.url.path == BLOCKS_PATH
        every = int(request.url.params["every"])
        value = request.headers["authorization"]
        if self.status != 200 or not self.door.admits(KEYS, value, every, time.time()):
            return httpx.Response(self.status if self.status != 200 else 401)
        self.feeds.append(Feed())
        return httpx.Response(200, stream=self.feeds[-1])

    def say(self, piece: bytes | Exception | None) -> None:
        """Send a piece on the latest feed."""
        self.feeds[-1].pieces.put_nowait(piece)


class Stand:
    """A reader of one pod, and what it made of its feed."""

    def __init__(self, keys: BlockKeys = KEYS) -> None:
        self.sidecar = Sidecar()
        self.blocks = PodBlocks(BlockIndex(1000), lambda: 0.0)
        self.blocks.use(KEYS, frozenset({POD}))
        self.blocks.seat({POD: 0})
        self.heard: list[str] = []
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.sidecar))
        self.reader = FeedReader(
            self.client,
            ADDRESS,
            keys,
            self.blocks,
            asyncio.Semaphore(1),
            time.time,
            self.heard.append,
            backoff=Backoff(0.001, 0.001),
        )

    @property
    def depth(self) -> int:
        """Tokens of the prompt that the pod holds."""
        groups = self.blocks.held(PROMPT, 1).groups
        return groups[0][0] if groups else 0

    async def until(self, said: Callable[[], object]) -> None:
        """Wait until ``said`` holds."""
        async with asyncio.timeout(5):
            while not said():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)


@asynccontextmanager
async def reading(keys: BlockKeys = KEYS) -> AsyncIterator[Stand]:
    """Give a reader that runs."""
    stand = Stand(keys)
    task = asyncio.ensure_future(stand.reader.run())
    yield stand
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stand.client.aclose()


@asynccontextmanager
async def following() -> AsyncIterator[Stand]:
    """Give a reader whose feed is whole."""
    async with reading() as stand:
        await stand.until(lambda: stand.sidecar.feeds)
        stand.sidecar.say(WHOLE)
        await stand.until(lambda: stand.heard == ["whole"])
        yield stand


async def test_a_feed_is_followed_from_its_beginning() -> None:
    async with following() as stand:
        assert stand.depth == 192
        assert stand.blocks.states[FeedState.WHOLE] == 1
        stand.sidecar.say(b"".join(removed(NAMES[1:])))
        await stand.until(lambda: stand.depth == 64)
        change = b"".join(added(NAMES[1:2])) + encode(Alive())
        for at in range(len(change)):
            stand.sidecar.say(change[at : at + 1])
        await stand.until(lambda: stand.depth == 128)
        stand.sidecar.say(encode(Cleared()))
        await stand.until(lambda: stand.depth == 0)
        assert stand.blocks.states[FeedState.WHOLE] == 1


async def test_an_engine_that_restarted_holds_nothing_of_before() -> None:
    """The same pod, the same connection: its feed begins anew."""
    async with following() as stand:
        stand.sidecar.say(encode(replace(HELLO, epoch="e2")) + encode(Whole()))
        await stand.until(lambda: stand.heard == ["whole"] * 2)
        assert stand.depth == 0


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (None, "ended"),
        (httpx.ReadTimeout("silent"), "silent"),
        (httpx.ReadError("reset"), "unreachable"),
        (b"A" + bytes([0, 0, 0, 3]) + b"xyz", "invalid"),
        (encode(replace(HELLO, every=2)), "invalid"),
    ],
)
async def test_a_feed_that_ends_is_forgotten_and_asked_for_again(
    end: bytes | Exception | None, result: str
) -> None:
    async with following() as stand:
        with capture_logs() as logs:
            stand.sidecar.say(end)
            await stand.until(lambda: len(stand.sidecar.feeds) == 2)
            assert stand.heard == ["whole", result]
            assert stand.depth == 0
            assert stand.blocks.states[FeedState.LOST] == 1
            stand.sidecar.say(WHOLE)
            await stand.until(lambda: stand.depth == 192)
            await stand.until(lambda: stand.heard[-1] == "whole")
        assert [log["event"] for log in logs] == ["feed of blocks lost", "feed of blocks is back"]


async def test_a_sidecar_that_refuses_is_asked_again() -> None:
    async with reading(BlockKeys.of(bytes(32))) as stand:
        await stand.until(lambda: stand.sidecar.asked >= 3)
        assert set(stand.heard) == {"refused"}
        assert not stand.blocks.ready


async def test_a_real_silence_is_a_loss() -> None:
    """On a socket: what was read says nothing for longer than it may."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n" % (len(WHOLE), WHOLE))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stand = Stand()
    async with httpx.AsyncClient(trust_env=False) as client:
        reader = FeedReader(
            client,
            replace(ADDRESS, host="127.0.0.1", port=port),
            KEYS,
            stand.blocks,
            asyncio.Semaphore(1),
            time.time,
            stand.heard.append,
            silence_s=0.05,
        )
        task = asyncio.ensure_future(reader.run())
        await stand.until(lambda: stand.heard == ["whole", "silent"])
        assert stand.depth == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await ended.wait()
    server.close()
    await stand.client.aclose()


def known(*endpoints: RouteEndpoint, key: bytes = KEY) -> Routes:
    """Return a route table with a key."""
    keys = (BlocksKey(namespace=TENANT, key=key.hex()),)
    return Routes.from_table(
        RouteTable.model_validate({**dict(table(*endpoints)), "blocks_keys": keys}), TENANT
    )


async def test_the_keeper_reads_what_the_table_names(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar()
    made = httpx.AsyncClient
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **_: made(transport=httpx.MockTransport(sidecar))
    )
    stand = Stand()
    keeper = FeedKeeper(stand.blocks, stand.heard.append)
    task = asyncio.ensure_future(keeper.run())
    keeper.want(known(endpoint(1, blocks_port=8091), endpoint(2)))
    await stand.until(lambda: sidecar.feeds)
    sidecar.say(WHOLE)
    await stand.until(lambda: stand.depth == 192)
    assert stand.blocks.states == {FeedState.WHOLE: 1, FeedState.PARTIAL: 0, FeedState.LOST: 0}
    # One that stays is not asked anew, as the one that comes beside it is.
    keeper.want(
        known(endpoint(1, blocks_port=8091), endpoint(2, pod_uid="uid-1", blocks_port=8091))
    )
    await stand.until(lambda: len(sidecar.feeds) == 2)
    keeper.want(known(endpoint(1, blocks_port=8091)))
    assert (sidecar.asked, stand.depth) == (2, 192)
    # Another pod at the same address holds nothing of what the one before it did.
    sidecar.door = Door("uid-9", 0.0)
    keeper.want(known(endpoint(1, pod_uid="uid-9", blocks_port=8091)))
    await stand.until(lambda: len(sidecar.feeds) == 3)
    assert stand.depth == 0
    sidecar.say(WHOLE)
    await stand.until(lambda: stand.depth == 192)
    keeper.want(known(endpoint(1, pod_uid="uid-9")))
    await stand.until(lambda: stand.depth == 0)
    assert stand.blocks.states[FeedState.LOST] == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stand.client.aclose()


def test_the_address_of_a_feed() -> None:
    assert ADDRESS.url == "http://10.0.0.1:8091/v1/blocks"
    assert replace(ADDRESS, host="fd00::1").url == "http://[fd00::1]:8091/v1/blocks"


@pytest.mark.parametrize("beginning", [encode(HELLO), encode(Cleared())])
async def test_a_feed_that_does_nothing_but_begin_anew_is_ended(beginning: bytes) -> None:
    """Else the index would have a new bit for each, faster than old ones are swept out."""
    async with following() as stand:
        one = beginning + b"".join(added(NAMES[:1]))
        stand.sidecar.say(one * (MOST_BEGINNINGS - 1))
        await stand.until(lambda: stand.depth == 64)
        stand.sidecar.say(one)
        await stand.until(lambda: stand.heard[-1] == "invalid")
        assert stand.blocks.states[FeedState.LOST] == 1
        await stand.until(lambda: len(stand.sidecar.feeds) == 2)
        stand.sidecar.say(WHOLE)
        await stand.until(lambda: stand.heard[-2:] == ["invalid"] * 2)
