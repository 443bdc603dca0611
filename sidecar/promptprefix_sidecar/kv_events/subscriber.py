"""Reads the engine's event stream: in order, without holes, or with the word that one is missing.

vLLM publishes ``[topic, number, payload]`` over PUB; numbers are 8 bytes, big-endian, from 0 on.
Its replay socket (ROUTER) answers a first number with the batches it still has from there on, each
as ``[…, number, payload]``, and ends with number -1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from promptprefix_sidecar.kv_events.counters import Counters
from promptprefix_sidecar.kv_events.decoding import BatchError, decode_batch
from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.kv_events.past import Past, WholeSink
from promptprefix_sidecar.kv_events.sequence import Arrival, BatchOrder
from promptprefix_sidecar.kv_events.sockets import (
    NUMBER_BYTES,
    PUBLISHED_FRAMES,
    number_of,
    open_socket,
)

log = structlog.get_logger()

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
MAX_ABSENCE_S = 1.0
"""Between two looks for an engine that is starting: its first warm-up should not go unheard."""
READ_AT_ONCE = 32
"""Messages that are put on the board together."""
REPLAY_SILENCE_S = 2.0
REPLAY_TRIES = 3
"""Requests in a row that bring nothing new: what is missing is gone."""
_ENDS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)  # fmt: skip


class Sink(Protocol):
    """What takes the events. No method waits, so nothing queues up here."""

    def take(self, batch: Batch) -> None:
        """Take the next batch."""

    def missed(self) -> None:
        """Events are missing before the next batch, or the engine is another one."""

    def flush(self) -> None:
        """Nothing more is at hand just now."""


@dataclass(frozen=True)
class Endpoints:
    """Where the engine publishes, and where it replays ("": nowhere)."""

    events: str
    replay: str = ""
    topic: str = ""


class Subscriber:
    """One engine's stream. ``whole`` also takes what was published before, where it is replayed."""

    def __init__(
        self,
        endpoints: Endpoints,
        sink: Sink,
        counters: Counters,
        whole: WholeSink | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._sink = sink
        self._counters = counters
        self._past = None if whole is None else Past(whole, endpoints.replay)
        self._begin()

    def _begin(self) -> None:
        if self._past is not None:
            self._past.begin()
        self._order = BatchOrder()
        self._rank: int | None = None
        self._warned = False

    async def run(self) -> None:
        """Read until cancelled, over all restarts of the engine."""
        failures = 0
        context = zmq.asyncio.Context(io_threads=1)
        try:
            while True:
                try:
                    read = await self._read(context)
                except zmq.ZMQError as error:
                    log.warning("kv events failed", error=str(error))
                    read = False
                self._counters.connected.set(0)
                self._begin()
                self._sink.missed()
                self._flush()
                failures = 0 if read else failures + 1
                await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures, 10)))
        finally:
            context.destroy(linger=0)

    async def _read(self, context: zmq.asyncio.Context) -> bool:
        """Read from one connection until it ends; return whether there was a batch."""
        with open_socket(context, zmq.SUB) as socket:
            socket.subscribe(self._endpoints.topic)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(MAX_ABSENCE_S * 1000))
            monitor = socket.get_monitor_socket(_ENDS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            poller = zmq.asyncio.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            try:
                socket.connect(self._endpoints.events)
                while True:
                    ready = dict(await poller.poll())
                    if socket in ready:
                        await self._take_queued(context, socket)
                    if monitor in ready and await self._ended(context, monitor):
                        return self._order.expected is not None
            finally:
                socket.disable_monitor()
                monitor.close()

    async def _ended(self, context: zmq.asyncio.Context, monitor: zmq.asyncio.Socket) -> bool:
        event = parse_monitor_message(await monitor.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._counters.connected.set(1)
            log.info("kv events connected", endpoint=self._endpoints.events)
            await self._recall(context)
            return False
        log.warning("kv events disconnected", endpoint=self._endpoints.events)
        return True

    async def _take_queued(self, context: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                frames = await socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            await self._arrived(context, frames)
            # A queue that is never empty must not stop the rest of the process.
            await asyncio.sleep(0)
        self._counters.connected.set(1)  # the word of it may come later than what was sent
        self._flush()
        await asyncio.sleep(0)

    def _flush(self) -> None:
        self._sink.flush()
        if self._past is not None:
            self._past.flush()

    async def _recall(self, context: zmq.asyncio.Context, until: int | None = None) -> None:
        """Bring what ``whole`` has not heard; the sink is told of what comes from now on only."""
        if self._past is not None:
            await self._past.recall(context, self._decoded, until)

    async def _arrived(self, context: zmq.asyncio.Context, frames: Sequence[bytes]) -> None:
        number = number_of(frames[1]) if len(frames) == PUBLISHED_FRAMES else None
        if number is None or number < 0:
            self._counters.unknown.labels(what="frames").inc()
            return
        batch = self._decoded(frames[2])
        if batch is not None and not self._of_our_rank(batch):
            return
        arrival = self._order.look(number, None if batch is None else batch.at)
        if arrival is Arrival.REPEATED:
            return
        if arrival is Arrival.RESET:
            log.warning("kv events begin anew", number=number)
            self._counters.resets.inc()
            self._order = BatchOrder()
            self._sink.missed()
            if self._past is not None:
                self._past.begin()
        if arrival is Arrival.GAP:
            await self._fill(context, number)
        await self._recall(context, number)
        self._take(number, batch)

    def _of_our_rank(self, batch: Batch) -> bool:
        """Whether a batch is of the same data-parallel rank as the first one: each has a cache."""
        if self._rank is None:
            self._rank = batch.rank
        if batch.rank == self._rank:
            return True
        if not self._warned:
            self._warned = True
            log.warning("kv events of several ranks", read=self._rank, passed_over=batch.rank)
        self._counters.unknown.labels(what="rank").inc()
        return False

    def _decoded(self, payload: bytes) -> Batch | None:
        try:
            batch = decode_batch(payload)
        except BatchError:
            self._counters.unknown.labels(what="batch").inc()
            return None
        self._counters.unknown.labels(what="event").inc(batch.unknown)
        self._counters.unknown.labels(what="broken").inc(batch.broken)
        return batch

    def _take(self, number: int, batch: Batch | None, *, replayed: bool = False) -> None:
        """Take a batch over. What can't be read may have said anything."""
        self._order.take(number, None if batch is None else batch.at, replayed=replayed)
        if batch is None or batch.broken:
            self._sink.missed()
        if self._past is not None:
            self._past.take(number, batch)
        if batch is not None:
            self._counters.batches.inc()
            self._sink.take(batch)

    async def _fill(self, context: zmq.asyncio.Context, until: int) -> None:
        """Bring the batches before ``until`` by replay, or say that they are lost."""
        first = self._order.expected
        tries = REPLAY_TRIES if self._endpoints.replay else 0
        while self._order.expected != until and tries:
            before = self._order.expected
            again = await self._replay(context, until)
            tries = (
                0 if not again else REPLAY_TRIES if self._order.expected != before else tries - 1
            )
        outcome = "replayed" if self._order.expected == until else "lost"
        self._counters.gaps.labels(outcome=outcome).inc()
        log.warning("kv events missing", first=first, until=until, outcome=outcome)
        if outcome == "lost":
            self._sink.missed()

    async def _replay(self, context: zmq.asyncio.Context, until: int) -> bool:
        """Ask once; return whether the engine may have more than came.

        It forgets the oldest batches, and its socket drops the last ones of a long answer.
        """
        self._counters.replays.inc()
        came = False
        with open_socket(context, zmq.DEALER) as socket:
            socket.connect(self._endpoints.replay)
            first = self._order.expected or 0
            await socket.send_multipart([b"", first.to_bytes(NUMBER_BYTES, "big")])
            while await socket.poll(int(REPLAY_SILENCE_S * 1000)):
                frames = await socket.recv_multipart()
                number = number_of(frames[-2]) if len(frames) >= PUBLISHED_FRAMES else None
                if number is None:
                    self._counters.unknown.labels(what="frames").inc()
                    continue
                if not first <= number < until:
                    return False
                if number != self._order.expected:
                    return came
                self._take(number, self._decoded(frames[-1]), replayed=True)
                came = True
                await asyncio.sleep(0)
        return True
