"""The KV events as one part of the sidecar: settings in, knowledge on the board out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from promptprefix_sidecar.block_feed.counters import FeedCounters
from promptprefix_sidecar.block_feed.feed import Feed
from promptprefix_sidecar.block_feed.names import BlockNames
from promptprefix_sidecar.block_feed.server import BlockFeedServer
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.kv_events.counters import Counters
from promptprefix_sidecar.kv_events.follower import Follower, KnowsSalts
from promptprefix_sidecar.kv_events.index import Index
from promptprefix_sidecar.kv_events.subscriber import Endpoints, Subscriber


@dataclass(frozen=True)
class KvEvents:
    """Reads the engine's events, follows the placements and feeds routers, side by side."""

    follower: Follower
    subscriber: Subscriber
    server: BlockFeedServer | None

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run(), name="kv follower")
            group.create_task(self.subscriber.run(), name="kv subscriber")
            if self.server is not None:
                group.create_task(self.server.run(), name="block feed")


def kv_events(
    endpoints: Endpoints,
    board: Board,
    salts: KnowsSalts,
    clock: Clock,
    registry: CollectorRegistry,
    pace_s: float,
    feed_at: tuple[str, int] | None = None,
) -> KvEvents:
    """Put the parts together. ``pace_s``: how often a prefix without a pin is warmed at most.

    ``feed_at``: host and port of the feed of block names; without them there is none.
    """
    index, counters = Index(), Counters(registry)
    counters.watch(lambda: index.blocks)
    follower = Follower(index, board, salts, clock, pace_s)
    if feed_at is None:
        return KvEvents(follower, Subscriber(endpoints, follower, counters), None)
    names = BlockNames(index.reported)
    feed, (host, port) = Feed(names), feed_at
    server = BlockFeedServer(
        feed, board, clock, FeedCounters(registry, names), host=host, port=port
    )
    return KvEvents(follower, Subscriber(endpoints, follower, counters, feed), server)
