"""When the pressure valve opens, over a scheduler that stands in for vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from promptprefix_vllm.pins import Pin
from promptprefix_vllm.scheduler import pinning_class


class FullAttentionSpec:
    """Named as vLLM's, by which the plugin knows it."""


class Pool:
    """Every block is cached."""

    num_gpu_blocks = 101

    def __init__(self) -> None:
        self.blocks = [
            SimpleNamespace(block_id=number, ref_cnt=0, is_null=False, block_hash=bytes([number]))
            for number in range(101)
        ]

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1

    def evict_blocks(self, block_ids: set[int]) -> None: ...

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> Any:
        return [self.blocks[block_hash[0]]]

    def get_num_free_blocks(self) -> int:
        return sum(not block.ref_cnt for block in self.blocks[1:])


class Scheduler:
    """Has one request that gets no blocks."""

    block_size = 4
    deferred_frees: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.kv_cache_manager = SimpleNamespace(
            block_pool=Pool(), enable_caching=True, allocate_slots=lambda: None
        )
        group = SimpleNamespace(kv_cache_spec=FullAttentionSpec())
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting = [SimpleNamespace(request_id="r")]
        self.kv_holding_waiting: list[Any] = []

    def schedule(self) -> Any:
        self.kv_cache_manager.allocate_slots()
        return SimpleNamespace(
            scheduled_new_reqs=[], scheduled_cached_reqs=None, total_num_scheduled_tokens=0
        )


def pinned_after_a_step(scheduler: Any) -> tuple[Pin, ...]:
    table = scheduler._desk.table
    table.pin("a", [b"\x01"], lease=60, priority=0, now=0.0)
    table.renew("a", lease=1e12, priority=0, now=0.0)
    scheduler.schedule()
    pins: tuple[Pin, ...] = table.pins
    return pins


def test_a_request_that_gets_no_blocks_opens_the_valve() -> None:
    assert not pinned_after_a_step(pinning_class(Scheduler)())


class Silent(Scheduler):
    """Refuses blocks in a place that the plugin does not watch."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = [self.request()]
        self.connector = SimpleNamespace(get_num_new_matched_tokens=lambda: (None, False))
        self.connector_asked = False

    def request(self) -> Any:
        status = SimpleNamespace(name="WAITING")
        # Of 100 blocks two are pinned.
        return SimpleNamespace(
            status=status, request_id="r", num_tokens=398, block_hashes=[], sampling_params=None
        )

    def schedule(self) -> Any:
        if self.connector_asked:
            self.connector.get_num_new_matched_tokens()
        return SimpleNamespace(
            scheduled_new_reqs=[], scheduled_cached_reqs=None, total_num_scheduled_tokens=0
        )

    def add_request(self, request: Any) -> None:
        self.waiting.append(request)
        self.requests[request.request_id] = request

    def _free_request(self, request: Any) -> None:
        self.waiting.remove(request)
        self.requests.pop(request.request_id, None)


class Bench:
    """A scheduler with two pins, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("promptprefix_vllm.scheduler.time.monotonic", lambda: self.now)
        self.scheduler: Any = pinning_class(Silent)()
        self.scheduler.pause_state = SimpleNamespace(name="UNPAUSED")
        for number, name in enumerate("ab"):
            self.scheduler._desk.table.pin(
                name, [bytes([number + 1])], lease=1e9, priority=0, now=0.0
            )

    def run(self, seconds: float) -> int:
        """How many pins are left after so many seconds of steps."""
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.scheduler.schedule()
        return len(self.scheduler._desk.table.pins)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize("status", ["WAITING", "PREEMPTED"])
def test_an_engine_that_is_stuck_for_an_unknown_reason_gives_up_a_pin_every_five_seconds(
    status: str, bench: Bench
) -> None:
    bench.scheduler.waiting[0].status.name = status
    # Both pins have to go for 399 tokens, of 4 to a block.
    bench.scheduler.waiting[0].num_tokens = 399
    assert bench.run(5.0) == 2
    assert bench.run(0.5) == 1
    assert bench.run(4.5) == 1
    assert bench.run(0.5) == 0


def test_it_gives_up_no_more_than_the_request_needs(bench: Bench) -> None:
    bench.scheduler.waiting[0].num_tokens = 395
    assert bench.run(30.0) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("waiting[0].status.name", "WAITING_FOR_FSM"),
        ("waiting[0].num_tokens", 391),
        ("pause_state.name", "PAUSED_ALL"),
        ("connector_asked", True),
        ("running", [object()]),
    ],
)
def test_what_waits_for_something_else_than_blocks_opens_no_valve(
    name: str, value: object, bench: Bench
) -> None:
    scheduler = bench.scheduler
    if name.startswith("waiting[0].status"):
        scheduler.waiting[0].status.name = value
    elif name.startswith("waiting[0]"):
        scheduler.waiting[0].num_tokens = value
    elif name.startswith("pause_state"):
        scheduler.pause_state.name = value
    else:
        setattr(scheduler, name, value)
    assert bench.run(30.0) == 2


def test_a_stale_stamp_opens_no_valve(bench: Bench) -> None:
    bench.run(4.0)
    bench.now += 3600
    assert bench.run(4.0) == 2


def test_a_request_that_ends_or_comes_to_an_empty_engine_starts_the_time_anew(
    bench: Bench,
) -> None:
    bench.run(4.0)
    bench.scheduler._free_request(bench.scheduler.waiting[0])
    bench.scheduler.add_request(bench.scheduler.request())
    assert bench.run(4.0) == 2


def test_a_release_that_asks_first_whether_a_whole_prompt_fits() -> None:
    class Asking(Scheduler):
        def __init__(self) -> None:
            super().__init__()
            self.kv_cache_manager.can_fit_full_sequence = lambda: False

        def schedule(self) -> Any:
            self.kv_cache_manager.can_fit_full_sequence()
            return SimpleNamespace(
                scheduled_new_reqs=[], scheduled_cached_reqs=None, total_num_scheduled_tokens=0
            )

    assert not pinned_after_a_step(pinning_class(Asking)())


@pytest.mark.parametrize(
    ("status", "opens"), [("WAITING_FOR_REMOTE_KVS", False), ("PREEMPTED", True)]
)
def test_the_valve_waits_for_requests_whose_blocks_are_being_loaded(
    status: str, opens: bool
) -> None:
    scheduler = pinning_class(Scheduler)()
    request = SimpleNamespace(request_id="s", status=SimpleNamespace(name=status))
    scheduler.kv_holding_waiting.append(request)
    assert bool(pinned_after_a_step(scheduler)) is not opens
