"""The feed's own port. Whoever can't prove that it may read learns nothing, not even why."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import replace
from typing import Final

import structlog
from aiohttp import web

from promptprefix.block_door import Door
from promptprefix.block_stream import BLOCKS_PATH, DEFAULT_EVERY, MAX_EVERY, BlockKeys
from promptprefix_sidecar.block_feed.counters import FeedCounters
from promptprefix_sidecar.block_feed.feed import Feed, NoRoomError, Reader
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.snapshot import Snapshot

log = structlog.get_logger()

WRITE_S = 10.0
"""A reader that takes nothing for so long is cut off."""
GONE_S = 30.0
"""A reader whose machine is gone keeps its place for so long. Linux would hope for 15 minutes."""
BIND_AGAIN_S = 10.0
IDLE_CONNECTION_S = 5.0
SHUTDOWN_S = 1.0
_STEP: Final = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)


class BlockFeedServer:
    """Serves ``feed`` at a port, and keeps it in step with the board. Nothing waits for it."""

    def __init__(
        self,
        feed: Feed,
        board: Board,
        clock: Clock,
        counters: FeedCounters,
        *,
        host: str,
        port: int,
    ) -> None:
        self._feed = feed
        self._board = board
        self._clock = clock
        self._counters = counters
        self._host = host
        self._port = port
        self._opened = clock.wall()
        self._door = Door("", self._opened)
        self._keys: BlockKeys | None = None
        self._changed = board.subscribe()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="block feed board")
            group.create_task(self._serve(), name="block feed port")

    async def _follow(self) -> None:
        while True:
            self._look(self._board.snapshot)
            await self._changed.wait()

    def _look(self, snapshot: Snapshot) -> None:
        engine = snapshot.engine
        bases = tuple(name for name in engine.models if name not in engine.adapters)
        self._feed.describe(snapshot.epoch, bases)
        keys = BlockKeys.from_hex(snapshot.blocks_key)
        if keys is None:
            return  # an operator that is older tells none
        if keys != self._keys:
            self._keys = keys
            self._feed.keyed(keys)
        if snapshot.pod_uid != self._door.pod_uid:
            self._door = Door(snapshot.pod_uid, self._opened)

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get(BLOCKS_PATH, self.blocks, allow_head=False)
        runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=IDLE_CONNECTION_S,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        try:
            await self._bind(runner)
            await asyncio.Event().wait()
        finally:
            self._announce(0)
            self._feed.dismiss()
            await runner.cleanup()

    async def _bind(self, runner: web.AppRunner) -> None:
        while True:
            try:
                await web.TCPSite(runner, self._host, self._port).start()
            except OSError as error:
                log.error("block feed port can't be opened", port=self._port, error=str(error))
                await asyncio.sleep(BIND_AGAIN_S)
                continue
            self._announce(self._port)
            log.info("block feed", port=self._port)
            return

    def _announce(self, port: int) -> None:
        self._board.apply(lambda snapshot: replace(snapshot, blocks_port=port))

    async def blocks(self, request: web.Request) -> web.StreamResponse:
        """Answer with the feed, until one side ends it."""
        text = request.query.get("every", str(DEFAULT_EVERY))
        every = int(text) if _STEP.fullmatch(text) else 0
        value = request.headers.get("authorization")
        if not self._door.admits(self._keys, value, every, self._clock.wall()):
            return self._refuse(401, "proof")
        if not 1 <= every <= MAX_EVERY:
            return self._refuse(400, "step")
        try:
            reader = self._feed.join(every)
        except NoRoomError:
            return self._refuse(503, "room")
        self._counters.consumers.inc()
        try:
            return await self._tell(request, reader)
        finally:
            self._counters.consumers.dec()
            self._feed.leave(reader)

    def _refuse(self, status: int, reason: str) -> web.Response:
        self._counters.refused.labels(reason=reason).inc()
        return web.Response(status=status)

    async def _tell(self, request: web.Request, reader: Reader) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "application/octet-stream", "cache-control": "no-store"}
        )
        response.enable_chunked_encoding()
        try:
            await self._write(request, response, reader)
        except ConnectionError:
            return response
        except TimeoutError:
            reader.end()
        if reader.cut:
            self._counters.cut_off.inc()
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _write(
        self, request: web.Request, response: web.StreamResponse, reader: Reader
    ) -> None:
        connection = None if request.transport is None else request.get_extra_info("socket")
        if connection is not None:
            gone_ms = int(GONE_S * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, gone_ms)
        async with asyncio.timeout(WRITE_S):
            await response.prepare(request)
        while not reader.cut:
            data = await reader.take()
            if data:
                async with asyncio.timeout(WRITE_S):
                    await response.write(data)
