"""Continuous batching as vLLM's scheduler does it, first come first served, with its interface.

The pin plugin extends this class as it extends vLLM's own: ``pinning_scheduler`` builds what
``--scheduler-cls promptprefix_vllm.scheduler.scheduler_class`` builds there. Source: the class
``Scheduler`` of vLLM 0.32.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from e2e.simulator.blocks import BlockPool
from e2e.simulator.cache_manager import CacheManager
from e2e.simulator.options import SimulatorOptions
from e2e.simulator.sim_request import RequestStatus, SimRequest
from e2e.simulator.tokenizer import word
from promptprefix_vllm.commands import ARGUMENT
from promptprefix_vllm.endings import Ending
from promptprefix_vllm.scheduler import pinning_class
from promptprefix_vllm.settings import Settings


class PauseState(enum.Enum):
    """Whether requests are scheduled; names as vLLM's."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


@dataclass(frozen=True)
class FullAttentionSpec:
    """The one kind of KV cache that is simulated; the plugin asks for its name."""

    block_size: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


@dataclass(frozen=True)
class NewRequestData:
    """An admitted request; ``num_computed_tokens`` is what was found cached."""

    req_id: str
    num_computed_tokens: int


@dataclass(frozen=True)
class CachedRequestData:
    """Requests that came back from preemption."""

    resumed_req_ids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SchedulerOutput:
    """One step: how many tokens of which request are computed."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequestData = CachedRequestData()
    prefilled: int = 0
    decoded: int = 0

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True)
class StepResult:
    """What a step gave one request; ``kv_transfer_params`` come with its last token."""

    request: SimRequest
    text: str
    last: bool = False
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class Stats:
    """What ``make_stats`` tells; the plugin corrects the usage."""

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float


class SimScheduler:
    """Reads no clock: steps are taken by whoever drives it.

    What vLLM's class has not is named ``_sim_…``, so that no name of the plugin's meets it.
    """

    def __init__(self, options: SimulatorOptions) -> None:
        pool = BlockPool(options.blocks, options.block_size, events=options.events)
        self.options = options
        self.block_size = options.block_size
        self.hash_block_size = options.block_size
        self.connector: Any = None
        self.parallel_config = SimpleNamespace(data_parallel_size=1)
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec(options.block_size))]
        )
        self.kv_cache_manager = CacheManager(pool)
        self.requests: dict[str, SimRequest] = {}
        self.waiting: deque[SimRequest] = deque()
        self.running: list[SimRequest] = []
        self.pause_state = PauseState.UNPAUSED
        self.preemptions = 0

    # -- requests coming and going

    def add_request(self, request: SimRequest) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[SimRequest]:
        """End requests from outside; None: all of them."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        ids = list(self.requests) if request_ids is None else list(request_ids)
        found = [self.requests[name] for name in ids if name in self.requests]
        for request in found:
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            else:
                self.waiting.remove(request)
            request.status = finished_status
            self._free_request(request)
        return found

    def _free_request(self, request: SimRequest, delay_free_blocks: bool = False) -> Any:
        self._free_blocks(request)
        return None, None

    def _free_blocks(self, request: SimRequest) -> None:
        self.kv_cache_manager.free(request)
        self.requests.pop(request.request_id, None)

    # -- scheduling

    def schedule(self) -> SchedulerOutput:
        """Give running requests their tokens, then admit waiting ones, within the step's budget."""
        budget = 0 if self.pause_state is PauseState.PAUSED_ALL else self.options.max_batched_tokens
        step: dict[str, int] = {}
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            fits, lost = self._sim_make_room(request, count)
            preempted |= lost
            if not fits:
                break
            step[request.request_id] = count
            budget -= count
            index += 1
        new: list[NewRequestData] = []
        resumed: list[str] = []
        if not preempted and self.pause_state is PauseState.UNPAUSED:
            self._sim_admit(budget, step, new, resumed)
        decoded = sum(1 for name in step if self._sim_decodes(name))
        output = SchedulerOutput(
            num_scheduled_tokens=step,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=CachedRequestData(frozenset(resumed)),
            prefilled=sum(step.values()) - decoded,
            decoded=decoded,
        )
        for name, count in step.items():
            self.requests[name].num_computed_tokens += count
        return output

    def _sim_decodes(self, name: str) -> bool:
        request = self.requests[name]
        return bool(request.output_token_ids) and (
            request.num_tokens - request.num_computed_tokens == 1
        )

    def _sim_make_room(self, request: SimRequest, count: int) -> tuple[bool, bool]:
        """Allocate, preempting the latest requests; says whether it fits, and if any was lost."""
        lost = False
        while self.kv_cache_manager.allocate_slots(request, count) is None:
            victim = self.running.pop()
            self._sim_preempt(victim)
            lost = True
            if victim is request:
                return False, lost
        return True, lost

    def _sim_preempt(self, request: SimRequest) -> None:
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _sim_admit(
        self, budget: int, step: dict[str, int], new: list[NewRequestData], resumed: list[str]
    ) -> None:
        manager = self.kv_cache_manager
        while self.waiting and budget > 0 and len(self.running) < self.options.max_num_seqs:
            request = self.waiting[0]
            hit = manager.get_computed_blocks(request)
            cached = len(hit) * self.block_size
            count = min(request.num_tokens - cached, budget)
            if manager.allocate_slots(request, count, hit, whole_sequence_must_fit=True) is None:
                break
            self.waiting.popleft()
            manager.record(request, cached)
            if request.num_cached_tokens is None:
                request.num_cached_tokens = cached
            if request.status is RequestStatus.PREEMPTED:
                resumed.append(request.request_id)
            else:
                new.append(NewRequestData(request.request_id, cached))
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = cached
            self.running.append(request)
            step[request.request_id] = count
            budget -= count

    def update_from_output(self, output: SchedulerOutput) -> list[StepResult]:
        """Give a token to every request whose prompt is complete; free those that end."""
        results: list[StepResult] = []
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            if request.num_computed_tokens < request.num_tokens:
                continue
            token_id, text = word(request.seed, len(request.output_token_ids))
            request.append_output(token_id)
            request.output_text += text
            if self._sim_ends(request, token_id):
                self.running.remove(request)
                freed = self._free_request(request)
                parameters = freed[0] if isinstance(freed, tuple) else freed
                results.append(StepResult(request, text, True, parameters))
            else:
                results.append(StepResult(request, text))
        return results

    def _sim_ends(self, request: SimRequest, token_id: int) -> bool:
        parameters = request.sampling_params
        stop = next((each for each in parameters.stop if each in request.output_text), None)
        if stop is not None or token_id in parameters.stop_token_ids:
            if stop is not None:
                request.output_text = request.output_text.partition(stop)[0]
            request.stop_reason = token_id if stop is None else stop
            request.status = RequestStatus.FINISHED_STOPPED
        elif (
            len(request.output_token_ids) >= parameters.max_tokens
            or request.num_tokens >= self.options.max_model_len
        ):
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return request.is_finished

    # -- what the engine asks about

    def get_num_unfinished_requests(self) -> int:
        """Return how many could make progress; paused ones can't."""
        if self.pause_state is PauseState.PAUSED_ALL:
            return 0
        if self.pause_state is PauseState.PAUSED_NEW:
            return len(self.running)
        return len(self.running) + len(self.waiting)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        if reset_running_requests:
            while self.running:
                self._sim_preempt(self.running.pop())
        return self.kv_cache_manager.reset_prefix_cache()

    def get_kv_cache_usage(self) -> float:
        return self.kv_cache_manager.usage

    def make_stats(self) -> Stats:
        return Stats(len(self.running), len(self.waiting), self.kv_cache_manager.usage)


def _ended(ending: Ending) -> StepResult:
    answer = None if ending.answer is None else {ARGUMENT: ending.answer}
    return StepResult(ending.request, "", True, answer)


def pinning_scheduler(options: SimulatorOptions) -> Any:
    """Return the scheduler with the pin plugin's own code around it, or without, as wished."""
    if not options.plugin:
        return SimScheduler(options)
    settings = Settings(key=options.key, budget=options.pin_budget)
    base: Any = pinning_class(SimScheduler)

    class Configured(base):  # type: ignore[misc]
        def _open_desk(self, _from_environment: Settings) -> None:
            super()._open_desk(settings)

        def _with_endings(self, outputs: list[StepResult], endings: Sequence[Ending]) -> Any:
            return [*outputs, *(_ended(ending) for ending in endings)]

    return Configured(options)
