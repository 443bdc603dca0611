"""The feed's port by its rules of time: a reader that takes nothing, and a key that changes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from e2e.block_reader import proof, reading
from promptprefix.block_stream import BLOCKS_PATH, KEY_BYTES, BlockKeys
from promptprefix_sidecar.block_feed import server as server_module
from promptprefix_sidecar.block_feed.counters import PREFIX, FeedCounters
from promptprefix_sidecar.block_feed.feed import Feed
from promptprefix_sidecar.block_feed.names import BlockNames
from promptprefix_sidecar.block_feed.server import BlockFeedServer
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.snapshot import EngineView, Snapshot

from .block_engine import KEYS, names_of, stored

KEY = bytes(range(KEY_BYTES))
OTHER = bytes(KEY_BYTES)
UID = "u"
PROMPT = list(range(12))


@dataclass
class Stand:
    board: Board
    feed: Feed
    registry: CollectorRegistry
    port: int

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"{PREFIX}_{name}")


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = EngineView(healthy=True, boot="b1", models=("m", "tuned"), adapters=("tuned",))
    board = Board(Snapshot(engine=engine, blocks_key=KEY.hex(), pod_uid=UID))
    names, registry = BlockNames(), CollectorRegistry()
    feed = Feed(names)
    server = BlockFeedServer(
        feed, board, Clock(), FeedCounters(registry, names), host="127.0.0.1", port=port
    )
    changed = board.subscribe()
    task = asyncio.create_task(server.run())
    while not board.snapshot.blocks_port:
        await changed.wait()
    yield Stand(board, feed, registry, port)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert board.snapshot.blocks_port == 0


async def test_a_reader_that_takes_nothing_is_cut_off(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WRITE_S", 0.1)
    sock = socket.create_connection(("127.0.0.1", stand.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    value = proof(KEYS, UID)
    sock.sendall(
        f"GET {BLOCKS_PATH}?every=1 HTTP/1.1\r\nhost: a\r\nauthorization: {value}\r\n\r\n".encode()
    )
    stand.feed.take(Batch(0.0, (stored(range(100_000)),)))
    epoch = 0
    async with asyncio.timeout(30):
        while stand.metric("cut_off_total") == 0:
            epoch += 1  # all is told again
            stand.feed.describe(f"e{epoch}", ())
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while stand.metric("consumers"):  # noqa: ASYNC110 - a metric has no event
            await asyncio.sleep(0)
    sock.close()


async def test_readers_come_again_when_the_key_changes(stand: Stand) -> None:
    stand.feed.take(Batch(0.0, (stored(PROMPT),)))
    async with reading(stand.port, KEYS, UID) as reader:
        await reader.until(lambda r: r.held == set(names_of(PROMPT)))
        assert reader.hello is not None
        assert (reader.hello.epoch, reader.hello.bases) == ("b1", ("m",))
        stand.board.apply(lambda snapshot: replace(snapshot, blocks_key=OTHER.hex()))
        await reader.until(lambda r: r.ended)
    others = BlockKeys.of(OTHER)
    async with reading(stand.port, others, UID) as reader:
        stand.feed.take(Batch(0.0, (stored(PROMPT),)))
        stand.feed.flush()
        await reader.until(lambda r: r.held == set(names_of(PROMPT, keys=others)))


async def test_the_place_of_a_reader_whose_machine_is_gone_is_soon_free(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to it is in the kernel's hands, which gives up late unless it is told."""
    found: list[int] = []
    prepare = web.StreamResponse.prepare

    async def prepared(response: web.StreamResponse, request: web.BaseRequest) -> object:
        connection = request.get_extra_info("socket")
        found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return await prepare(response, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", prepared)
    async with reading(stand.port, KEYS, UID) as reader:
        await reader.until(lambda r: r.hello is not None)
    assert found == [server_module.GONE_S * 1000]
