"""The KV events as one part of the sidecar: settings in, knowledge on the board out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.kv_events.counters import Counters
from promptprefix_sidecar.kv_events.follower import Follower, KnowsSalts
from promptprefix_sidecar.kv_events.index import Index
from promptprefix_sidecar.kv_events.subscriber import Endpoints, Subscriber


@dataclass(frozen=True)
class KvEvents:
    """Reads the engine's events and follows the placements, side by side."""

    follower: Follower
    subscriber: Subscriber

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run(), name="kv follower")
            group.create_task(self.subscriber.run(), name="kv subscriber")


def kv_events(
    endpoints: Endpoints,
    board: Board,
    salts: KnowsSalts,
    clock: Clock,
    registry: CollectorRegistry,
    pace_s: float,
) -> KvEvents:
    """Put the parts together. ``pace_s``: how often a prefix without a pin is warmed at most."""
    index, counters = Index(), Counters(registry)
    counters.watch(lambda: index.blocks)
    follower = Follower(index, board, salts, clock, pace_s)
    return KvEvents(follower, Subscriber(endpoints, follower, counters))
