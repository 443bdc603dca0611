"""Publishes a simulated engine's KV events by ZeroMQ, and replays those that were missed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import zmq
import zmq.asyncio

from e2e.simulator.simulated_engine import SimulatedEngine


@contextlib.asynccontextmanager
async def publishing(
    engine: SimulatedEngine, endpoint: str, replay_endpoint: str = ""
) -> AsyncIterator[None]:
    """Publish on ``endpoint`` (bound) until the block ends; replays are asked for at the other."""
    context = zmq.asyncio.Context()
    # Sending from the engine's own step must not wait for anybody.
    publisher = zmq.Context(context).socket(zmq.PUB)
    publisher.bind(endpoint)

    def publish(frames: tuple[bytes, bytes, bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            publisher.send_multipart(frames, flags=zmq.NOBLOCK)

    engine.publish = publish
    replies = asyncio.create_task(_replay(engine, context, replay_endpoint))
    try:
        yield
    finally:
        engine.publish = None
        replies.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replies
        publisher.close(linger=0)
        context.destroy(linger=0)


async def _replay(engine: SimulatedEngine, context: zmq.asyncio.Context, endpoint: str) -> None:
    if not endpoint:
        return
    router = context.socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        frames = await router.recv_multipart()
        if len(frames) != 3:
            continue
        client, _, start = frames
        for frame in engine.events.replay(int.from_bytes(start, "big")):
            await router.send_multipart([client, b"", *frame])
