"""ZeroMQ sockets with bounded queues, and the numbers of batches on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq
import zmq.asyncio

QUEUED_MESSAGES = 512
"""Of one socket. More wait in the engine, which drops what its own queue can't hold."""
MAX_MESSAGE_BYTES = 16 * 2**20
"""A step of an engine makes some hundred kilobytes at most."""
NUMBER_BYTES = 8
PUBLISHED_FRAMES = 3


@contextlib.contextmanager
def open_socket(context: zmq.asyncio.Context, kind: int) -> Iterator[zmq.asyncio.Socket]:
    """Open a socket and close it at the end, without waiting for what was not sent."""
    socket = context.socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        yield socket
    finally:
        socket.close()


def number_of(frame: bytes) -> int | None:
    """Return the number in a frame; None if there is none."""
    return int.from_bytes(frame, "big", signed=True) if len(frame) == NUMBER_BYTES else None
