"""The subscriber at a real ZeroMQ publisher: gaps, replays, restarts, floods and garbage."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from promptprefix_sidecar.kv_events import subscriber as subscriber_module
from promptprefix_sidecar.kv_events.counters import PREFIX, Counters
from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.kv_events.subscriber import Endpoints, Subscriber

from .kv_publisher import KvPublisher, publisher_in

CLEAR = ["AllBlocksCleared"]
MISSED = -1.0


@dataclass
class Heard:
    """A sink: the times of the batches in order, and `MISSED` where events were missing."""

    log: list[float] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, batch: Batch) -> None:
        self.log.append(batch.at)

    def missed(self) -> None:
        self.log.append(MISSED)

    def flush(self) -> None:
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_at(self, at: float) -> None:
        await self.until(lambda: at in self.log)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"{PREFIX}_{name}", labels) or 0.0


@contextlib.asynccontextmanager
async def hearing(publisher: KvPublisher, *, replay: bool = True) -> AsyncIterator[Heard]:
    heard = Heard()
    endpoints = Endpoints(publisher.events, publisher.replay if replay else "", publisher.topic)
    reader = Subscriber(endpoints, heard, Counters(heard.registry))
    task = asyncio.create_task(reader.run())
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


@pytest.fixture
async def publisher(tmp_path: Path) -> AsyncIterator[KvPublisher]:
    async with publisher_in(tmp_path).serving() as serving:
        yield serving


async def test_batches_arrive_in_order(publisher: KvPublisher) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        for _ in range(5):
            await publisher.publish(CLEAR)
        await heard.until_at(5)
        assert heard.log == [1, 2, 3, 4, 5]
        assert (heard.count("batches_total"), heard.count("connected")) == (5, 1)
        assert not publisher.asked


async def test_other_topics_are_not_heard(publisher: KvPublisher) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.send([b"other", bytes(8), b"x"])
        await publisher.publish(CLEAR)
        await heard.until_at(1)
        assert heard.count("unknown_total", what="batch") == 0


async def test_over_tcp() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    over_tcp = KvPublisher(f"tcp://127.0.0.1:{port}", f"ipc:///tmp/kv-replay-{port}")
    async with over_tcp.serving(), hearing(over_tcp) as heard:
        await over_tcp.subscribed()
        await over_tcp.publish(CLEAR)
        await heard.until_at(1)


async def test_a_gap_is_filled_by_replay_and_repetitions_are_passed_over(
    publisher: KvPublisher,
) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR)
        await publisher.publish(CLEAR, lose=True)
        await publisher.publish(CLEAR, lose=True)
        await publisher.publish(CLEAR)
        await publisher.send_again(1)
        await publisher.send_again(2)
        await publisher.publish(CLEAR)
        await heard.until_at(5)
        assert heard.log == [1, 2, 3, 4, 5]
        assert publisher.asked == [1]
        assert heard.count("gaps_total", outcome="replayed") == 1
        assert (heard.count("replays_total"), heard.count("resets_total")) == (1, 0)


async def test_a_long_answer_that_is_cut_short_is_asked_for_again(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "REPLAY_SILENCE_S", 0.2)
    publisher.answer = 3
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR)
        for _ in range(7):
            await publisher.publish(CLEAR, lose=True)
        await publisher.publish(CLEAR)
        await heard.until_at(9)
        assert heard.log == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        # An answer that takes longer than the silence is asked for twice.
        assert [at for at, _ in groupby(publisher.asked)] == [1, 4, 7]


@pytest.mark.parametrize("case", ["forgotten", "mute", "no replay"])
async def test_a_gap_that_can_not_be_filled_is_told(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(subscriber_module, "REPLAY_SILENCE_S", 0.02)
    publisher.ring = 2 if case == "forgotten" else 100
    publisher.mute = case == "mute"
    async with hearing(publisher, replay=case != "no replay") as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR)
        for _ in range(3):
            await publisher.publish(CLEAR, lose=True)
        await publisher.publish(CLEAR)
        await publisher.publish(CLEAR)
        await heard.until_at(6)
        assert heard.log == [1, MISSED, 5, 6]
        assert heard.count("gaps_total", outcome="lost") == 1
        assert len(publisher.asked) == {"forgotten": 1, "mute": 3, "no replay": 0}[case]


async def test_an_engine_that_starts_again_at_the_same_endpoint_is_another_one(
    tmp_path: Path,
) -> None:
    first, second = publisher_in(tmp_path), publisher_in(tmp_path)
    second.at = 100
    async with hearing(first) as heard:
        async with first.serving():
            await first.subscribed()
            await first.publish(CLEAR)
            await heard.until_at(1)
        await heard.until(lambda: MISSED in heard.log)
        assert heard.count("connected") == 0
        async with second.serving():
            await second.subscribed()
            for _ in range(3):
                await second.publish(CLEAR)
            await heard.until_at(103)
        assert heard.log[:5] == [1, MISSED, 101, 102, 103]


async def test_numbers_that_begin_anew_are_a_reset(publisher: KvPublisher) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        for _ in range(3):
            await publisher.publish(CLEAR)
        publisher.sent = 0
        await publisher.publish(CLEAR)
        await publisher.publish(CLEAR)
        await heard.until_at(5)
        assert heard.log == [1, 2, 3, MISSED, 4, 5]
        assert heard.count("resets_total") == 1


async def test_another_rank_has_another_cache(publisher: KvPublisher) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR, rank=3)
        await publisher.send([b"kv", bytes(8), msgspec.msgpack.encode([9.0, [CLEAR], 0])])
        await publisher.send([b"kv", bytes(8), msgspec.msgpack.encode([9.5, [CLEAR], 1])])
        await publisher.publish(CLEAR, rank=3)
        await heard.until_at(2)
        assert heard.log == [1, 2]
        assert heard.count("unknown_total", what="rank") == 2


async def test_garbage_is_counted_and_ends_nothing(publisher: KvPublisher) -> None:
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR)
        await publisher.send([b"kv"])
        await publisher.send([b"kv", b"1234567", b"x"])
        await publisher.send([b"kv", b"\xff" * 8, b"x"])
        await publisher.send([b"kv", bytes(8), b"x", b"more"])
        await publisher.publish_bytes(b"\xc1\xff")
        await publisher.publish(CLEAR, ["Novelty"], ["BlockRemoved", 3])
        await publisher.publish(CLEAR)
        await heard.until_at(3)
        assert heard.log == [1, MISSED, MISSED, 2, 3]
        unknown = {
            what: heard.count("unknown_total", what=what)
            for what in ("frames", "batch", "event", "broken")
        }
        assert unknown == {"frames": 4, "batch": 1, "event": 1, "broken": 1}


async def test_a_flood_waits_in_bounded_queues_and_what_they_drop_is_told(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "REPLAY_SILENCE_S", 0.05)
    flood = 20_000
    async with hearing(publisher) as heard:
        await publisher.subscribed()
        await publisher.publish(CLEAR)
        await heard.until_at(1)
        for _ in range(flood):  # sending to a full queue drops at once: the reader gets no turn
            await publisher.publish(CLEAR, "filling" * 100)
        async with asyncio.timeout(20):
            while heard.log[-1] != publisher.at:
                heard.changed.clear()
                await publisher.publish(CLEAR)
                await heard.changed.wait()
        assert heard.count("batches_total") < flood / 4
        assert heard.count("gaps_total", outcome="lost") >= 1
        assert MISSED in heard.log
        assert heard.log[-1] == publisher.at


async def test_no_engine_is_waited_for_and_a_bad_endpoint_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "FIRST_BACKOFF_S", 0.001)
    endless = KvPublisher(f"ipc://{tmp_path}/{'x' * 200}", "")
    async with hearing(endless, replay=False) as heard:
        await heard.until(lambda: len(heard.log) >= 3)
        assert set(heard.log) == {MISSED}
