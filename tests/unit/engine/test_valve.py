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
        self.waiting = [SimpleNamespace(status=SimpleNamespace(name="WAITING"), request_id="r")]

    def schedule(self) -> Any:
        return SimpleNamespace(
            scheduled_new_reqs=[], scheduled_cached_reqs=None, total_num_scheduled_tokens=0
        )


@pytest.mark.parametrize(
    ("status", "pause", "opens"),
    [
        ("WAITING", "UNPAUSED", True),
        ("PREEMPTED", "UNPAUSED", True),
        ("WAITING_FOR_FSM", "UNPAUSED", False),
        ("WAITING", "PAUSED_ALL", False),
    ],
)
def test_an_engine_that_is_stuck_for_an_unknown_reason_opens_the_valve(
    status: str, pause: str, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("promptprefix_vllm.scheduler.time.monotonic", lambda: clock[0])
    scheduler: Any = pinning_class(Silent)()
    scheduler.pause_state = SimpleNamespace(name="UNPAUSED")
    scheduler.waiting[0].status.name = "WAITING_FOR_FSM"
    assert pinned_after_a_step(scheduler)
    scheduler.pause_state.name, scheduler.waiting[0].status.name = pause, status
    for _ in range(2):
        clock[0] += 4.0
        scheduler.schedule()
        assert scheduler._desk.table.pins
    clock[0] += 4.0
    scheduler.schedule()
    assert bool(scheduler._desk.table.pins) is not opens


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
