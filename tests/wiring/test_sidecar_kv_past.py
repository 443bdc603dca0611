"""A sink that wants all since the engine's start, at a real ZeroMQ publisher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from promptprefix_sidecar.kv_events import past as past_module
from promptprefix_sidecar.kv_events import subscriber as subscriber_module
from promptprefix_sidecar.kv_events.counters import Counters
from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.kv_events.subscriber import Endpoints, Subscriber

from .kv_publisher import KvPublisher, publisher_in

CLEAR = ["AllBlocksCleared"]
Log = list[float | str]


@dataclass
class WholeHeard:
    """The times of the batches since the last beginning, and how that was."""

    log: Log = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, *, complete: bool) -> None:
        self.log = ["complete" if complete else "incomplete"]
        self.changed.set()

    def take(self, batch: Batch) -> None:
        self.log.append(batch.at)

    def flush(self) -> None:
        self.changed.set()

    async def until(self, condition: Callable[[Log], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition(self.log):
                self.changed.clear()
                await self.changed.wait()


@dataclass
class LiveHeard:
    """What a sink hears that is told of the present only."""

    log: list[float] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        self.log.append(batch.at)

    def missed(self) -> None:
        pass

    def flush(self) -> None:
        pass


@contextlib.asynccontextmanager
async def hearing(
    publisher: KvPublisher, *, replay: bool = True
) -> AsyncIterator[tuple[WholeHeard, LiveHeard]]:
    whole, live = WholeHeard(), LiveHeard()
    endpoints = Endpoints(publisher.events, publisher.replay if replay else "", publisher.topic)
    reader = Subscriber(endpoints, live, Counters(CollectorRegistry()), whole)
    task = asyncio.create_task(reader.run())
    try:
        yield whole, live
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "SILENCE_S", 0.3)
    monkeypatch.setattr(subscriber_module, "REPLAY_SILENCE_S", 0.05)


@pytest.fixture
async def publisher(tmp_path: Path) -> AsyncIterator[KvPublisher]:
    async with publisher_in(tmp_path).serving() as serving:
        yield serving


async def publish(publisher: KvPublisher, times: int, *, lose: bool = False) -> None:
    for _ in range(times):
        await publisher.publish(CLEAR, lose=lose)


async def test_who_comes_later_hears_all_from_the_start_and_nothing_twice(
    publisher: KvPublisher,
) -> None:
    await publish(publisher, 3)
    async with hearing(publisher) as (whole, live):
        await publisher.subscribed()
        await whole.until(lambda log: log == ["complete", 1, 2, 3])
        await publish(publisher, 2)
        await whole.until(lambda log: log == ["complete", 1, 2, 3, 4, 5])
        assert live.log == [4, 5]
        assert publisher.asked == [0]


async def test_an_engine_that_has_published_nothing_is_known_completely(
    publisher: KvPublisher,
) -> None:
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await whole.until(lambda log: log == ["complete"])
        await publish(publisher, 1)
        await whole.until(lambda log: log == ["complete", 1])


async def test_what_the_engine_has_forgotten_is_missing(publisher: KvPublisher) -> None:
    publisher.ring = 2
    await publish(publisher, 5)
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await whole.until(lambda log: log == ["incomplete", 4, 5])


async def test_a_long_answer_that_is_cut_short_is_asked_for_again(publisher: KvPublisher) -> None:
    publisher.answer = 3
    await publish(publisher, 7)
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await whole.until(lambda log: log == ["complete", 1, 2, 3, 4, 5, 6, 7])
        assert publisher.asked == [0, 3, 6]


@pytest.mark.parametrize("case", ["mute", "no replay"])
async def test_without_a_replay_what_comes_is_heard(publisher: KvPublisher, case: str) -> None:
    publisher.mute = case == "mute"
    await publish(publisher, 2)
    async with hearing(publisher, replay=case != "no replay") as (whole, live):
        await publisher.subscribed()
        await publish(publisher, 2)
        await whole.until(lambda log: log == ["incomplete", 3, 4])
        assert live.log == [3, 4]


async def test_a_gap_is_filled_or_begins_it_anew(publisher: KvPublisher) -> None:
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await publish(publisher, 1)
        await publish(publisher, 2, lose=True)
        await publish(publisher, 1)
        await whole.until(lambda log: log == ["complete", 1, 2, 3, 4])
        publisher.ring = 1
        await publish(publisher, 2, lose=True)
        await publish(publisher, 1)
        await whole.until(lambda log: log == ["incomplete", 7])


async def test_what_can_not_be_read_begins_it_anew(publisher: KvPublisher) -> None:
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await publish(publisher, 1)
        await publisher.publish_bytes(b"\xc1")
        await publish(publisher, 1)
        await whole.until(lambda log: log == ["incomplete", 2])


async def test_another_engine_process_begins_it_anew(tmp_path: Path) -> None:
    first, second = publisher_in(tmp_path), publisher_in(tmp_path)
    second.at = 100
    async with hearing(first) as (whole, _):
        async with first.serving():
            await first.subscribed()
            await publish(first, 1)
            await whole.until(lambda log: log == ["complete", 1])
        await whole.until(lambda log: log == ["incomplete"])
        async with second.serving():
            await publish(second, 2)
            await whole.until(lambda log: log == ["complete", 101, 102])


async def test_numbers_that_begin_anew_begin_it_anew(publisher: KvPublisher) -> None:
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await publish(publisher, 3)
        await whole.until(lambda log: log == ["complete", 1, 2, 3])
        publisher.sent = 0
        publisher._kept.clear()
        await publish(publisher, 2)
        await whole.until(lambda log: log == ["complete", 4, 5])


async def test_of_several_ranks_the_first_is_heard(publisher: KvPublisher) -> None:
    await publisher.publish(CLEAR, rank=1)
    await publisher.publish(CLEAR, rank=0)
    async with hearing(publisher) as (whole, _):
        await publisher.subscribed()
        await whole.until(lambda log: log == ["complete", 1])
