"""One feed and its readers: each gets all names that are held, then what changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from promptprefix.block_stream import (
    ALIVE_S,
    Alive,
    BlockKeys,
    Cleared,
    Hello,
    Whole,
    added,
    encode,
    removed,
)
from promptprefix_sidecar.block_feed.names import BlockNames, Changes
from promptprefix_sidecar.kv_events.events import Batch

MAX_READERS = 16
MAX_QUEUED_BYTES = 4 * 2**20
"""What waits for one reader; all names that there can be are a quarter of it."""

_ALIVE = encode(Alive())


class NoRoomError(Exception):
    """There are `MAX_READERS` already."""


class Reader:
    """What waits for one reader of each ``every``th block, in order."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.hello: Hello | None = None
        self.cut = False
        self._parts: deque[bytes] = deque()
        self._queued = 0
        self._news = asyncio.Event()

    def put(self, parts: Iterable[bytes]) -> None:
        """Let frames wait; with too many the reader is cut off, and they are dropped."""
        for part in parts:
            self._parts.append(part)
            self._queued += len(part)
        if self._queued > MAX_QUEUED_BYTES:
            self.end()
        self._news.set()

    def end(self) -> None:
        """Cut the reader off."""
        self.cut = True
        self._parts.clear()
        self._queued = 0
        self._news.set()

    async def take(self) -> bytes:
        """Return what waits, or a sign of life after `ALIVE_S`; nothing when it is cut off."""
        try:
            async with asyncio.timeout(ALIVE_S):
                await self._news.wait()
        except TimeoutError:
            return _ALIVE
        return self.drain()

    def drain(self) -> bytes:
        """Return what waits just now."""
        self._news.clear()
        data = b"".join(self._parts)
        self._parts.clear()
        self._queued = 0
        return data


class Feed:
    """Takes an engine's events and tells its readers. ``names`` are those of its blocks."""

    def __init__(self, names: BlockNames) -> None:
        self._names = names
        self._readers: set[Reader] = set()
        self._epoch = ""
        self._bases: tuple[str, ...] = ()
        self._keys: BlockKeys | None = None

    def begin(self, *, complete: bool) -> None:
        """Forget everything. ``complete``: what follows is all since the engine started."""
        self._names.begin(complete=complete)

    def take(self, batch: Batch) -> None:
        """Take the next batch."""
        self._names.apply(batch.events)

    def describe(self, epoch: str, bases: tuple[str, ...]) -> None:
        """Tell readers of the engine's epoch and the names of its base model."""
        if (epoch, bases) != (self._epoch, self._bases):
            self._epoch, self._bases = epoch, bases
            self.flush()

    def keyed(self, keys: BlockKeys) -> None:
        """Name blocks by these keys; who proved itself by others has to come again."""
        if keys == self._keys:
            return
        self._keys = keys
        self.dismiss()
        self._names.keyed(keys)
        self.flush()

    def join(self, every: int) -> Reader:
        """Add a reader; raise `NoRoomError`."""
        if len(self._readers) >= MAX_READERS:
            raise NoRoomError
        self.flush()
        reader = Reader(every)
        self._readers.add(reader)
        self._greet([reader])
        return reader

    def leave(self, reader: Reader) -> None:
        """Drop a reader."""
        self._readers.discard(reader)

    def dismiss(self) -> None:
        """Send all readers away; they may come again."""
        for reader in self._readers:
            reader.end()

    def flush(self) -> None:
        """Tell what changed."""
        changes = self._names.take_changes()
        by_step: dict[int, list[Reader]] = {}
        for reader in self._readers:
            if not reader.cut:
                by_step.setdefault(reader.every, []).append(reader)
        for every, readers in by_step.items():
            hello = self._hello(every)
            known = [each for each in readers if each.hello == hello and not changes.anew]
            self._greet([each for each in readers if each not in known])
            frames = list(_frames(changes, every)) if known else ()
            for reader in known if frames else ():
                reader.put(frames)

    def _greet(self, readers: list[Reader]) -> None:
        if not readers:
            return
        every = readers[0].every
        hello = self._hello(every)
        parts = [encode(hello), *added(self._names.held(every)), encode(Whole())]
        for reader in readers:
            reader.hello = hello
            reader.put(parts)

    def _hello(self, every: int) -> Hello:
        names = self._names
        return Hello(self._epoch, names.block_size, every, self._bases, names.complete)


def _frames(changes: Changes, every: int) -> Iterable[bytes]:
    if changes.cleared:
        yield encode(Cleared())
    told = [(name, depth) for name, depth in changes.depths.items() if not depth % every]
    yield from removed(name for name, depth in told if depth < 0)
    yield from added(name for name, depth in told if depth > 0)
