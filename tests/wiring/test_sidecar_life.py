"""Whatever happens to engine, sidecar and desired set: in the end the engine holds what is wanted.

One action after another, by a clock that the test turns: no time passes in the test itself.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import HttpUrl

from promptprefix.payload import Payload
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.desired import with_desired
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import Sidecar, build_sidecar

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine, block_hashes

PROBE_S = 10.0
QUIET_S = 1500.0
"""Longer than the longest pause between two tries."""
PAUSE_S = 100.0
"""Between two looks at whether all is as it should be."""
WALL = 1_800_000_000.0
TEXTS = [Payload(systemInstructions=f"{name} sorts support requests. " * 4) for name in "ABC"]


class World:
    """An engine and its sidecar. ``fate`` is what becomes of the next requests, first to last."""

    def __init__(self, folder: Path, *, tier: str, plugin: bool, budget: int) -> None:
        self.now = 1000.0
        self.folder = folder
        (folder / "key").write_bytes(b"k" * 32)
        self.engine = FakeEngine(tier=tier, plugin=plugin, budget=budget)
        self.control = FakeControl()
        self.clock = Clock(monotonic=lambda: self.now, wall=lambda: WALL + self.now)
        self.placements = [self.control.placement(text.digest[:4], text) for text in TEXTS]
        self.wanted: dict[int, Placement] = {}
        self.fate: list[str] = []
        self.actions = 0
        self.look_at = self.now
        self._wind()
        self.start_sidecar()

    def start_sidecar(self) -> None:
        values = Settings(
            control_url=HttpUrl("https://operator"),
            pod_ip="10.0.0.7",
            key_file=self.folder / "key",
            latch_file=self.folder / "latch",
            report_interval_s=25.0,
            warm_chunk_tokens=2 * BLOCK_SIZE,
        )
        client = httpx.AsyncClient(
            base_url="http://engine", transport=httpx.MockTransport(self._through)
        )
        self.sidecar: Sidecar = build_sidecar(values, client, self.control, self.clock)
        self.policy = self.sidecar.keep_lane._policy
        self.executor = self.sidecar.keep_lane._executor
        self.tell()

    def _wind(self) -> None:
        """The plugin's desk goes by the test's clock, and so do its leases."""
        self.engine.desk._monotonic = self.clock.monotonic
        self.engine.desk._wall_clock = self.clock.wall

    def tell(self) -> None:
        """The operator says what it wants."""
        placements = tuple(self.wanted.values())
        self.sidecar.board.apply(lambda snapshot: with_desired(snapshot, placements))

    async def _through(self, request: httpx.Request) -> httpx.Response:
        fate = self.fate.pop() if request.url.path == "/v1/completions" and self.fate else ""
        if fate == "refused":
            return httpx.Response(500)
        if fate == "lost":
            raise httpx.ReadTimeout("lost on its way", request=request)
        response = await self.engine._handle(request)
        if fate == "unheard":
            raise httpx.ReadTimeout("the answer was lost", request=request)
        if fate == "late":
            self.now += 30.0
        return response

    async def step(self) -> None:
        """Look at the engine, and do what is due; if nothing is, let time pass."""
        self.engine.table.release_expired(self.now)
        if self.now >= self.look_at:
            await self.sidecar.watcher.look()
            self.look_at = self.now + PROBE_S
        planned = plan(self.sidecar.board.snapshot, self.policy, self.now)
        action = planned.keep or planned.touch or planned.warm
        if action is None:
            self.now = min(planned.wake_at, self.look_at)
            return
        self.actions += 1
        await self.executor.run(action)

    async def rest(self, seconds: float) -> None:
        """Let so much time pass, doing all that is due."""
        until, self.actions = self.now + seconds, 0
        while self.now < until:
            await self.step()
            assert self.actions < 3 * seconds + 100, "a hot loop"

    def restart_engine(self) -> None:
        self.engine.restart()
        self._wind()

    def fall_asleep(self) -> None:
        self.engine.sleep()

    def wake(self) -> None:
        self.engine.awake.set()

    def want(self, number: int, pinning: Pinning, release: OnIdle | None) -> None:
        change = {"pinning": pinning, "release": release}
        self.wanted[number] = self.placements[number].model_copy(update=change)
        self.tell()

    def retain(self, number: int, pinning: Pinning) -> None:
        change = {"pinning": pinning, "retained": True}
        self.wanted[number] = self.placements[number].model_copy(update=change)
        self.tell()

    def unwant(self, number: int) -> None:
        self.wanted.pop(number, None)
        self.tell()

    def crowd(self) -> None:
        """Other traffic fills the cache."""
        for first in range(40):
            self.engine.prefill([90_000 + first * 100 + item for item in range(33)])

    def give_up_a_pin(self) -> None:
        self.engine.table.release_lowest(self.now)

    def strip(self, number: int) -> None:
        """Another party takes a block out of the cache, pinned or not."""
        cached = [*self.engine.pool.cached.values()]
        if cached:
            self.engine.pool.forget(cached[number % len(cached)])

    def is_right(self) -> bool:
        try:
            self.check()
        except AssertionError:
            return False
        return True

    def check(self) -> None:
        """What the sidecar says is so, and is what is wanted."""
        snapshot, pins = self.sidecar.board.snapshot, self.engine.pins()
        expected: set[str] = set()
        kept: set[str] = set()
        assert snapshot.records.keys() == {each.id for each in self.wanted.values()}
        for record in snapshot.records.values():
            if record.placement.retained:
                kept |= {record.pin_id} if record.pinned is Pinning.HARD else set()
                assert record.phase in (Phase.WARM, Phase.PENDING), record
                continue
            assert record.head is not None, record
            hashes = block_hashes(record.head.prompt_ids[: record.head.tokens])
            there = all(digest in self.engine.pool.cached for digest in hashes)
            if record.placement.release is not None:
                assert record.phase is Phase.RELEASED, record
                continue
            assert record.phase is Phase.WARM, record
            hard = record.placement.pinning is Pinning.HARD and self.engine.plugin
            if hard and record.pinned is Pinning.SOFT:
                assert len(hashes) > self.engine.budget - self.engine.table.blocks_pinned, record
                hard = False
            if hard:
                expected.add(record.pin_id)
            soft = Pinning.SOFT if record.placement.pinning is not Pinning.NONE else Pinning.NONE
            assert record.pinned is (Pinning.HARD if hard else soft), record
            # Nobody notices that one without a pin went.
            assert there or record.pinned is Pinning.NONE, record
        assert pins == expected | kept
        held = {i.block.block_id for pin in self.engine.table.pins for i in pin.held}
        assert held == set(range(1, self.engine.blocks + 1)) - set(self.engine.pool.free)


number = st.integers(0, len(TEXTS) - 1)
DEEDS: st.SearchStrategy[tuple[str, tuple[Any, ...]]] = st.one_of(
    st.tuples(
        st.just("want"),
        st.tuples(
            number,
            st.sampled_from([Pinning.HARD, Pinning.HARD, Pinning.SOFT, Pinning.NONE]),
            st.sampled_from([None, None, OnIdle.KEEP, OnIdle.EVICT, OnIdle.OFFLOAD]),
        ),
    ),
    st.tuples(st.just("retain"), st.tuples(number, st.sampled_from([Pinning.HARD, Pinning.NONE]))),
    st.tuples(st.just("unwant"), st.tuples(number)),
    st.tuples(
        st.sampled_from(
            [
                "restart_engine",
                "start_sidecar",
                "fall_asleep",
                "wake",
                "crowd",
                "give_up_a_pin",
                "step",
                "step",
                "step",
            ]
        ),
        st.just(()),
    ),
    st.tuples(st.just("strip"), st.tuples(st.integers(0, 63))),
    st.tuples(st.just("rest"), st.tuples(st.sampled_from([1.0, 5.0, 40.0, 130.0]))),
    st.tuples(
        st.just("fate"),
        st.tuples(
            st.lists(st.sampled_from(["refused", "lost", "unheard", "late", ""]), max_size=5)
        ),
    ),
)


async def live(world: World, deeds: list[tuple[str, tuple[Any, ...]]]) -> None:
    for number in range(len(TEXTS)):
        world.want(number, Pinning.HARD, None)
    for name, values in deeds:
        if name == "fate":
            world.fate = list(values[0])
            continue
        done = getattr(world, name)(*values)
        if asyncio.iscoroutine(done):
            await done
    world.fate = []
    world.wake()
    for _ in range(round(QUIET_S / PAUSE_S)):
        await world.rest(PAUSE_S)
        if world.is_right():
            break
    await world.rest(PAUSE_S)
    world.check()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(DEEDS, min_size=3, max_size=25),
    st.sampled_from(["", "Tier"]),
    st.sampled_from([True, True, False]),
    st.sampled_from([32, 10]),
)
def test_in_the_end_the_engine_holds_what_is_wanted(
    deeds: list[tuple[str, tuple[Any, ...]]], tier: str, plugin: bool, budget: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(World(Path(folder), tier=tier, plugin=plugin, budget=budget), deeds))
