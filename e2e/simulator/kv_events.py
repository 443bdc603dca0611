"""KV events as vLLM 0.32 encodes them (``vllm.distributed.kv_events``), and their replay ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

REPLAY_BATCHES = 10_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Base of the events: maps with their name under ``type``."""


class BlockStored(Event):
    """Blocks became cached, the first of them behind the parent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(Event):
    """Blocks were evicted."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    """The whole cache was reset."""


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The events of one step; ``ts`` is Unix seconds."""

    ts: float
    events: Sequence[Event]
    data_parallel_rank: int | None = None


def event_hash(digest: bytes) -> int:
    """Return a block hash as events name it: its last 64 bits."""
    return int.from_bytes(digest[-8:], "big")


class EventLog:
    """Numbers batches and keeps the last ones for those who missed some."""

    def __init__(self, topic: str) -> None:
        self.topic = topic.encode()
        self._next = 0
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=REPLAY_BATCHES)

    def record(self, events: Sequence[Event], wall: float) -> tuple[bytes, bytes, bytes]:
        """Return the frames of a batch: topic, sequence number and payload."""
        payload = msgspec.msgpack.encode(Batch(wall, events, 0))
        number, self._next = self._next, self._next + 1
        self._ring.append((number, payload))
        return self.topic, number.to_bytes(8, "big"), payload

    def replay(self, start: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Return what is answered to a replay from ``start``, with the end marker."""
        for number, payload in self._ring:
            if number >= start:
                yield self.topic, number.to_bytes(8, "big"), payload
        yield b"", END_OF_REPLAY, b""
