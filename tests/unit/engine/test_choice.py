"""An engine starts with whatever vLLM it is: with pins, or with vLLM's own scheduler."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from promptprefix_vllm.choice import choose
from promptprefix_vllm.scheduler import PinningMixin, scheduler_class
from promptprefix_vllm.support import missing_fields, unsupported

V1 = "vllm.v1.core.sched.scheduler"
V1_EARLY = "vllm.v1.core.scheduler"
V0 = "vllm.core.scheduler"
ASYNC = "vllm.v1.core.sched.async_scheduler"


class Plain:
    """Has every hook, and a block pool that nothing is known about."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.given = (arguments, named)
        self.kv_cache_manager: Any = None
        self.added: list[Any] = []
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        self.added.append(request)

    def _nothing(self, *_: Any) -> None: ...

    _free_request = finish_requests = get_kv_cache_usage = get_num_unfinished_requests = _nothing
    make_stats = reset_prefix_cache = schedule = _nothing


class Async(Plain):
    """What asynchronous scheduling takes."""


class Oldest:
    """Has no hooks."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.given = (arguments, named)


@dataclass
class Config:
    """Of a release that lets the configuration choose."""

    async_scheduling: bool = False
    scheduler_cls: Any = "promptprefix_vllm.scheduler.scheduler_class"

    def get_scheduler_cls(self) -> Any:
        assert self.scheduler_cls is None
        return Async if self.async_scheduling else Plain


@dataclass
class Failing(Config):
    """Chooses a class whose module is missing."""

    def get_scheduler_cls(self) -> Any:
        raise ImportError("no async_scheduler")


@dataclass
class Wordy(Config):
    """Chooses by name."""

    def get_scheduler_cls(self) -> Any:
        return "vllm.v1.core.sched.scheduler.Scheduler"


class Frozen(Config):
    """Can't be changed."""

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "scheduler_cls") and name == "scheduler_cls" and value is None:
            raise ValueError("frozen")
        super().__setattr__(name, value)


@dataclass
class Before:
    """Of a release that chooses elsewhere."""

    async_scheduling: bool = False
    scheduler_cls: Any = None


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Return vLLM's modules, all there; setting one in `sys.modules` to None takes it away."""
    classes = {
        V1: ("Scheduler", Plain),
        V1_EARLY: ("Scheduler", Plain),
        V0: ("Scheduler", Oldest),
        ASYNC: ("AsyncScheduler", Async),
    }
    made: dict[str, ModuleType] = {}
    for path, (name, kind) in classes.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            made.setdefault(module, ModuleType(module)).__path__ = []
        setattr(made[path], name, kind)
    for path, module_ in made.items():
        monkeypatch.setitem(sys.modules, path, module_)
    return made


def config_of(scheduler_config: Any, **fields: Any) -> dict[str, Any]:
    return {"vllm_config": SimpleNamespace(scheduler_config=scheduler_config, **fields)}


UNEXPECTED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Any]]] = {
    "no way to choose": ((), config_of(Before()), Plain),
    "no way to choose, asynchronous": ((), config_of(Before(async_scheduling=True)), Async),
    "no scheduler configuration": ((), {"vllm_config": SimpleNamespace()}, Plain),
    "a choice that fails": ((), config_of(Failing()), Plain),
    "a choice by name": ((), config_of(Wordy()), Plain),
    "a frozen configuration": ((), config_of(Frozen()), Plain),
    "a diffusion model without its class": ((), config_of(Config(), diffusion_config=1), Plain),
    "separate configurations": ((), {"scheduler_config": Before()}, Plain),
    "positional arguments": ((Before(), "cache"), {}, Oldest),
}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("arguments", "named", "kind"), UNEXPECTED.values(), ids=UNEXPECTED)
def test_an_unexpected_vllm_gets_its_own_scheduler(
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    kind: type[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = scheduler_class(*arguments, **named)
    assert type(scheduler) is kind
    assert scheduler.given == (arguments, named)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "pins are off" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_the_choice_is_vllms(is_async: bool) -> None:
    config = Config(is_async)
    choice = choose((), config_of(config))
    assert (choice.base, choice.problem) == (Async if is_async else Plain, "")
    assert config.scheduler_cls is not None


@pytest.mark.parametrize(
    ("missing", "is_async"), [(ASYNC, True), (V1, False)], ids=["async", "early"]
)
def test_missing_modules(
    missing: str,
    is_async: bool,
    modules: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert missing in modules
    monkeypatch.setitem(sys.modules, missing, None)
    choice = choose((), config_of(Before(is_async)))
    assert choice.base is Plain
    assert choice.problem


def test_missing_hooks_leave_the_plain_class(caplog: pytest.LogCaptureFixture) -> None:
    class Bare(Config):
        def get_scheduler_cls(self) -> Any:
            return Oldest

    assert type(scheduler_class(**config_of(Bare()))) is Oldest
    assert "has no" in caplog.text


def test_a_class_that_cannot_be_extended_is_used_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Final(Plain):
        def __init_subclass__(cls) -> None:
            raise TypeError("final")

    class Closed(Config):
        def get_scheduler_cls(self) -> Any:
            return Final

    assert type(scheduler_class(**config_of(Closed()))) is Final
    assert "can't be extended" in caplog.text


class Pool:
    num_gpu_blocks = 11

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> None: ...
    def touch(self, blocks: list[Any]) -> None: ...
    def free_blocks(self, ordered_blocks: Any) -> None: ...
    def evict_blocks(self, block_ids: set[int]) -> None: ...
    def get_num_free_blocks(self) -> int:
        return 10


class NestedPool(Pool):
    def touch(self, blocks: tuple[list[Any], ...]) -> None: ...  # type: ignore[override]


class UngroupedPool(Pool):
    def get_cached_block(self, block_hash: bytes) -> None: ...  # type: ignore[override]


class EarlierPool(NestedPool):
    """Of a release that drops one block at a time."""

    evict_blocks = None  # type: ignore[assignment]

    def _maybe_evict_cached_block(self, block: Any) -> None: ...


class StickyPool(Pool):
    """Can't drop blocks."""

    evict_blocks = None  # type: ignore[assignment]


class FullAttentionSpec:
    """Named as vLLM's."""


class SlidingWindowSpec:
    """Named as vLLM's."""

    block_size = 4


class MambaSpec:
    """Named as vLLM's."""


def state(pool: Any, **fields: Any) -> Any:
    manager = SimpleNamespace(block_pool=pool, enable_caching=True, allocate_slots=print)
    groups = [SimpleNamespace(kv_cache_spec=FullAttentionSpec())]
    given = {
        "kv_cache_manager": manager,
        "block_size": 4,
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
    }
    return SimpleNamespace(**{**given, **fields})


@pytest.mark.parametrize(
    ("scheduler", "word"),
    [
        (state(Pool()), ""),
        (state(NestedPool()), ""),
        (state(EarlierPool()), ""),
        (state(StickyPool()), "evict_blocks"),
        (state(UngroupedPool()), "kv_cache_group_ids"),
        (state(None), "touch"),
    ],
)
def test_block_pools(scheduler: Any, word: str) -> None:
    problem = unsupported(scheduler)
    assert (word in problem) if word else problem == ""


COORDINATOR = SimpleNamespace(find_longest_cache_hit=print)


def grouped(*specs: Any, coordinator: Any = COORDINATOR, **fields: Any) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    found = state(Pool(), kv_cache_config=SimpleNamespace(kv_cache_groups=groups), **fields)
    found.kv_cache_manager.coordinator = coordinator
    return found


def resized(spec: Any, **fields: Any) -> Any:
    vars(spec).update(fields)
    return spec


@pytest.mark.parametrize(
    ("scheduler", "word"),
    [
        (grouped(FullAttentionSpec(), SlidingWindowSpec()), ""),
        (grouped(SlidingWindowSpec()), ""),
        (grouped(), "no KV cache groups"),
        (grouped(FullAttentionSpec(), MambaSpec()), "MambaSpec"),
        (grouped(FullAttentionSpec(), coordinator=None), ""),
        (grouped(SlidingWindowSpec(), coordinator=None), "coordinator"),
        (grouped(SlidingWindowSpec(), use_eagle=True), "EAGLE"),
        (grouped(FullAttentionSpec(), use_eagle=True), ""),
        (grouped(resized(SlidingWindowSpec(), block_size=8)), "different sizes"),
        (grouped(resized(FullAttentionSpec(), prefix_replay_tokens=8)), "not verified"),
        (grouped(FullAttentionSpec(), hash_block_size=2), "different sizes"),
        (grouped(FullAttentionSpec(), parallel_config=SimpleNamespace(data_parallel_size=2)),
         "data parallel size is above 1"),
    ],
)  # fmt: skip
def test_kv_cache_groups(scheduler: Any, word: str) -> None:
    problem = unsupported(scheduler)
    assert (word in problem) if word else problem == ""


class Broken(Plain):
    """Has a block pool of no known size."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        pool = Pool()
        pool.num_gpu_blocks = None  # type: ignore[assignment]
        vars(self).update(vars(state(pool)))


class Working(Plain):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        vars(self).update(vars(state(Pool())))


class Kind(Config):
    """Chooses what it was made with."""

    kind: Any = None

    def get_scheduler_cls(self) -> Any:
        return self.kind


def kind_of(kind: type) -> dict[str, Any]:
    config = Kind()
    config.kind = kind
    return config_of(config)


def test_a_state_that_is_not_as_expected_switches_pins_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = scheduler_class(**kind_of(Broken))
    assert isinstance(scheduler, PinningMixin)
    assert "pins are off" in caplog.text
    scheduler.schedule()


def test_vllms_own_failure_is_not_hidden() -> None:
    class Failed(Plain):
        def __init__(self, **named: Any) -> None:
            raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        scheduler_class(**kind_of(Failed))


def test_requests_without_hashes_switch_pins_off(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = scheduler_class(**kind_of(Working))
    assert "pins are off" not in caplog.text
    parameters = SimpleNamespace(extra_args={"promptprefix": "{}"})
    request = SimpleNamespace(
        request_id="a", sampling_params=parameters, prompt_token_ids=[1], status=None
    )
    assert "block_hashes" in missing_fields(request)
    scheduler.add_request(request)
    assert scheduler.added == [request]
    assert "pins are off, requests have no block_hashes" in caplog.text
