"""What readers of a feed know is what is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.block_stream import (
    KEY_BYTES,
    NAME_BYTES,
    Added,
    Alive,
    BlockKeys,
    Cleared,
    Decoder,
    Frame,
    Hello,
    Removed,
    Whole,
)
from promptprefix_sidecar.block_feed import feed as feed_module
from promptprefix_sidecar.block_feed.feed import (
    MAX_QUEUED_BYTES,
    MAX_READERS,
    Feed,
    NoRoomError,
)
from promptprefix_sidecar.block_feed.names import MAX_BLOCKS, BlockNames
from promptprefix_sidecar.kv_events.events import Batch, Event, Stored
from promptprefix_sidecar.kv_events.events import Cleared as EngineCleared

from .block_engine import KEYS, SIZE, BlockEngine, names_of, stored

PROMPT = list(range(12))


class Router:
    """Reads a feed and keeps what it was told."""

    def __init__(self, feed: Feed, every: int = 1) -> None:
        self.reader = feed.join(every)
        self.decoder = Decoder(every)
        self.held: set[bytes] = set()
        self.hello = Hello("", 0, every)
        self.whole = False

    def read(self) -> list[Frame]:
        frames = self.decoder.feed(self.reader.drain())
        for frame in frames:
            match frame:
                case Hello():
                    self.hello, self.whole, self.held = frame, False, set()
                case Added(names):
                    self.held |= set(names)
                case Removed(names):
                    self.held -= set(names)
                case Cleared():
                    self.held.clear()
                case Whole():
                    self.whole = True
        return frames


def feed_of(*events: Event) -> Feed:
    feed = Feed(BlockNames())
    feed.keyed(KEYS)
    feed.begin(complete=True)
    take(feed, *events)
    return feed


def take(feed: Feed, *events: Event) -> None:
    feed.take(Batch(0.0, events))
    feed.flush()


def test_a_reader_gets_what_is_held_and_then_what_changes() -> None:
    feed = feed_of(stored(PROMPT[:8]))
    feed.describe("e1", ("m", "alias"))
    router = Router(feed)
    hello = Hello("e1", SIZE, 1, ("m", "alias"), complete=True)
    assert router.read() == [hello, Added(tuple(names_of(PROMPT[:8]))), Whole()]
    take(feed, stored(PROMPT, 4))
    assert router.read() == [Added(tuple(names_of(PROMPT)[4:]))]
    take(feed, EngineCleared())
    assert router.read() == [Cleared()]
    take(feed)
    assert router.read() == []


def test_what_comes_and_goes_between_two_looks_is_told_as_it_ends() -> None:
    engine, feed = BlockEngine(), feed_of(stored(PROMPT))
    router = Router(feed)
    router.read()
    feed.take(Batch(0.0, tuple(engine.compute([7, *PROMPT]))))
    feed.take(Batch(0.0, tuple(engine.evict(0))))
    feed.flush()
    router.read()
    assert router.held == set(names_of(PROMPT)) | engine.held


@pytest.mark.parametrize("change", ["epoch", "bases", "begin", "group", "size", "incomplete"])
def test_what_makes_all_before_void_begins_the_feed_anew(change: str) -> None:
    feed = feed_of(stored(PROMPT))
    router = Router(feed)
    router.read()
    match change:
        case "epoch":
            feed.describe("e2", ())
        case "bases":
            feed.describe("", ("m",))
        case "begin":
            feed.begin(complete=False)
            take(feed)
        case "group":
            take(feed, stored(PROMPT[:4], group=1))
        case "size":
            take(feed, Stored((b"big",), None, stored(PROMPT).tokens, 12))
        case "incomplete":
            take(feed, stored(list(range(20, 40)), 4))
    frames = router.read()
    assert isinstance(frames[0], Hello)
    assert frames[-1] == Whole()
    assert router.hello.complete is (change not in ("begin", "incomplete"))
    expected = {"begin": 0, "group": 2, "size": 1}.get(change, 6)
    assert len(router.held) == expected


def test_other_keys_send_readers_away() -> None:
    feed = feed_of(stored(PROMPT))
    router = Router(feed)
    feed.keyed(BlockKeys.of(bytes(KEY_BYTES)))
    assert router.reader.cut
    assert router.reader.drain() == b""
    feed.keyed(BlockKeys.of(bytes(KEY_BYTES)))
    assert not Router(feed).reader.cut


def test_readers_are_bounded() -> None:
    feed = feed_of()
    routers = [Router(feed) for _ in range(MAX_READERS)]
    with pytest.raises(NoRoomError):
        feed.join(1)
    feed.leave(routers[0].reader)
    feed.join(1)


def test_a_reader_that_is_too_slow_is_cut_off_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "MAX_QUEUED_BYTES", 400)
    feed = feed_of()
    slow, quick = Router(feed), Router(feed)
    engine = BlockEngine()
    for number in range(20):
        take(feed, *engine.compute([number, *PROMPT]))
        quick.read()
    assert (slow.reader.cut, quick.reader.cut) == (True, False)
    assert slow.reader.drain() == b""
    assert quick.held == engine.held


def test_all_names_that_there_can_be_fit_into_the_queue() -> None:
    assert MAX_BLOCKS * NAME_BYTES * 2 < MAX_QUEUED_BYTES


async def test_a_reader_without_news_hears_that_the_feed_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "ALIVE_S", 0.001)
    router = Router(feed_of())
    first = router.decoder.feed(await router.reader.take())
    assert first[-1] == Whole()
    assert router.decoder.feed(await router.reader.take()) == [Alive()]


PROMPTS = st.lists(st.integers(0, 2), min_size=0, max_size=9)
SCOPES = st.sampled_from([("", ""), ("tuned", ""), ("", "salt")])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), PROMPTS, SCOPES, st.booleans()),
        st.tuples(st.just("evict"), st.integers(0, 99)),
        st.tuples(st.just("clear")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("read")),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_reader_knows_what_is_held(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    feed, engine = feed_of(), BlockEngine()
    routers = [Router(feed)]
    depths: dict[bytes, int] = {}
    for step in steps:
        match step:
            case ("compute", prompt, scope, blind):
                depths |= {name: at + 1 for at, name in enumerate(names_of(prompt, scope))}
                feed.take(Batch(0.0, tuple(engine.compute(prompt, scope, blind=blind))))
            case ("evict", number):
                feed.take(Batch(0.0, tuple(engine.evict(number))))
            case ("clear",):
                engine.cached.clear()
                feed.take(Batch(0.0, (EngineCleared(),)))
            case ("flush",):
                feed.flush()
            case ("join", every) if len(routers) < MAX_READERS:
                routers.append(Router(feed, every))
            case ("read",):
                for router in routers:
                    router.read()
    feed.flush()
    for router in routers:
        router.read()
        every = router.reader.every
        assert router.held == {name for name in engine.held if depths[name] % every == 0}
        assert router.whole
        assert router.hello.complete
