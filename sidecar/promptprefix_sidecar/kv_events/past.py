"""What an engine published before anybody listened, for a sink that wants to know all of it.

Batches come from the replay socket first, then live ones go on behind them, none twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import structlog
import zmq
import zmq.asyncio

from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.kv_events.sockets import (
    NUMBER_BYTES,
    PUBLISHED_FRAMES,
    number_of,
    open_socket,
)

log = structlog.get_logger()

FLUSH_BATCHES = 32
SILENCE_S = 2.0
TRIES = 2
"""Requests in a row that bring nothing new."""

Read = Callable[[bytes], Batch | None]
"""Decodes a payload; None for what can't be read."""


class WholeSink(Protocol):
    """What takes the events from the engine's start on. No method waits."""

    def begin(self, *, complete: bool) -> None:
        """Forget everything. ``complete``: what follows is all since the engine started."""

    def take(self, batch: Batch) -> None:
        """Take the next batch."""

    def flush(self) -> None:
        """Nothing more is at hand just now."""


class Past:
    """One engine's batches for ``sink``. ``replay`` is its replay socket, "" without one."""

    def __init__(self, sink: WholeSink, replay: str) -> None:
        self._sink = sink
        self._replay = replay
        self.begin()

    def begin(self) -> None:
        """The connection is new: the engine may be another one."""
        self._next: int | None = None
        self._rank: int | None = None
        self._sink.begin(complete=False)

    def flush(self) -> None:
        """Nothing more is at hand just now."""
        self._sink.flush()

    async def recall(
        self, context: zmq.asyncio.Context, read: Read, until: int | None = None
    ) -> None:
        """Bring what came before batch ``until``, or all there is; once in a connection's life."""
        if self._next is not None or not self._replay:
            return
        self._next = 0
        if until == 0:
            self._sink.begin(complete=True)
            return
        taken = 0
        async with aclosing(self._answers(context, until)) as answers:
            async for number, payload in answers:
                if payload is None:
                    if not taken:
                        self._sink.begin(complete=True)  # nothing was published yet
                    break
                self._take_next(number, read(payload), first=not taken)
                taken += 1
                if taken % FLUSH_BATCHES == 0:
                    self._sink.flush()
        if taken:
            log.info("kv events recalled", batches=taken)
        self._sink.flush()

    def take(self, number: int, batch: Batch | None) -> None:
        """Take a live or replayed batch, unless it was recalled. None can't be read."""
        first = self._next is None
        if self._next is None:
            self._next = number
        if number >= self._next:
            self._take_next(number, batch, first=first)

    def _take_next(self, number: int, batch: Batch | None, *, first: bool) -> None:
        if first or number != self._next:
            self._sink.begin(complete=number == 0)
        self._next = number + 1
        if batch is None or batch.broken:
            self._sink.begin(complete=False)
        if batch is None:
            return
        if self._rank is None:
            self._rank = batch.rank
        if batch.rank == self._rank:
            self._sink.take(batch)

    async def _answers(
        self, context: zmq.asyncio.Context, until: int | None
    ) -> AsyncGenerator[tuple[int, bytes | None]]:
        """Yield what is replayed, in order, and at its end a number without a payload.

        A long answer loses its end: what is missing is asked for again.
        """
        expected, tries = 0, TRIES
        while tries:
            tries -= 1
            with open_socket(context, zmq.DEALER) as socket:
                socket.connect(self._replay)
                await socket.send_multipart([b"", expected.to_bytes(NUMBER_BYTES, "big")])
                came = False
                while await socket.poll(int(SILENCE_S * 1000)):
                    frames = await socket.recv_multipart()
                    number = number_of(frames[-2]) if len(frames) >= PUBLISHED_FRAMES else None
                    if number is None:
                        continue
                    if number < 0 or (until is not None and number >= until):
                        yield number, None
                        return
                    if number != expected and (came or number < expected):
                        break
                    yield number, frames[-1]
                    expected, came, tries = number + 1, True, TRIES
                    if expected == until:
                        return
