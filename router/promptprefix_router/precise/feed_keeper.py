"""Reads the feeds of the pods of the route table in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

from promptprefix.block_stream import BlockKeys
from promptprefix_router.control.routes import Routes
from promptprefix_router.precise.feed_reader import DIALS_AT_ONCE, FeedAddress, FeedReader
from promptprefix_router.precise.pod_blocks import PodBlocks

SWEEP_PAUSE_S = 0.02


class FeedKeeper:
    """Has one reader for each pod with a feed; another pod at the same address gets another one."""

    def __init__(
        self,
        blocks: PodBlocks,
        heard: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._blocks = blocks
        self._heard = heard
        self._clock = clock
        self._wanted: dict[FeedAddress, BlockKeys] = {}
        self._changed = asyncio.Event()

    def want(self, routes: Routes) -> None:
        """Read the feeds of these routes from now on, and no others."""
        keys = routes.blocks_keys
        addresses = [
            FeedAddress(each.address, each.engine[0], each.host, each.blocks_port)
            for each in routes.endpoints
            if each.blocks_port
        ]
        self._blocks.use(keys, frozenset(each.pod for each in addresses))
        self._wanted = {} if keys is None else dict.fromkeys(addresses, keys)
        self._changed.set()

    async def run(self) -> None:
        """Keep the readers for ever."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        dials = asyncio.Semaphore(DIALS_AT_ONCE)
        running: dict[tuple[FeedAddress, BlockKeys], asyncio.Task[None]] = {}
        async with (
            httpx.AsyncClient(limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                await self._changed.wait()
                self._changed.clear()
                wanted = self._wanted.items()
                # One that ends forgets what it knew of its address before the next one begins.
                await _end([running.pop(each) for each in [*running] if each not in wanted])
                for each in wanted:
                    if each not in running:
                        address, keys = each
                        reader = FeedReader(
                            client, address, keys, self._blocks, dials, self._clock, self._heard
                        )
                        running[each] = tasks.create_task(reader.run())

    async def sweep(self, pause_s: float = SWEEP_PAUSE_S) -> None:
        """Take out what nobody holds any more, in small steps, for ever."""
        while True:
            await asyncio.sleep(pause_s)
            self._blocks.sweep()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
