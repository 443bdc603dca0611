"""The engine without I/O: requests in, steps, tokens out, and what the metrics count.

Whoever drives it takes a step, waits for its duration, completes it, and gives the results to the
clients. Times are Unix seconds, passed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from e2e.simulator.histogram import Histogram
from e2e.simulator.kv_events import Event
from e2e.simulator.options import Adapter, SimulatorOptions
from e2e.simulator.scheduler import PauseState, SchedulerOutput, StepResult, pinning_scheduler
from e2e.simulator.sim_request import RequestStatus, SimRequest

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
                7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
LATENCY_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
                   120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


def token_buckets(longest: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, … up to the longest sequence, as vLLM does."""
    found: list[float] = []
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > longest:
                return tuple(found)
            found.append(float(step * power))
        power *= 10


class AdapterError(Exception):
    """An adapter can't be loaded or unloaded; ``status`` is HTTP's, ``kind`` vLLM's word."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass
class Counters:
    """Totals since the start, as the metrics page names them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class EngineCore:
    """One engine from its start to its end. ``booted`` is Unix seconds."""

    def __init__(self, options: SimulatorOptions, booted: float) -> None:
        self.options = options
        self.booted = booted
        self.scheduler = pinning_scheduler(options)
        self.adapters: dict[str, Adapter] = {each.name: each for each in options.adapters}
        self._adapter_numbers = max((each.number for each in options.adapters), default=0)
        self.sleep_level = 0
        self.paused = False
        self.counters = Counters()
        self.ttft = Histogram(TTFT_BUCKETS)
        self.latency = Histogram(LATENCY_BUCKETS)
        self.computed = Histogram(token_buckets(options.max_model_len))

    # -- requests

    def add(self, request: SimRequest) -> None:
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """End a request whose client is gone."""
        self._count_ends(self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED))

    def has_work(self) -> bool:
        """Say whether a step could make progress."""
        return bool(self.scheduler.get_num_unfinished_requests())

    def schedule(self) -> SchedulerOutput:
        output: SchedulerOutput = self.scheduler.schedule()
        return output

    def complete(self, output: SchedulerOutput, now: float) -> list[StepResult]:
        """Return what the step computed; ``now`` is when it ended."""
        results: list[StepResult] = self.scheduler.update_from_output(output)
        for result in results:
            request = result.request
            if request.status is RequestStatus.FINISHED_ABORTED:
                self._count_ends([request])
                continue
            self.counters.generation_tokens += 1
            if request.first_token_at is None:
                self._count_prefill(request, now)
            if result.last:
                self.counters.finished[str(request.status.finish_reason)] += 1
                self.latency.observe(now - request.arrived)
        return results

    def _count_prefill(self, request: SimRequest, now: float) -> None:
        request.first_token_at = now
        cached = request.num_cached_tokens or 0
        self.counters.prompt_tokens += request.num_prompt_tokens
        self.counters.cached_tokens += cached
        self.ttft.observe(now - request.arrived)
        self.computed.observe(request.num_prompt_tokens - cached)

    def _count_ends(self, requests: list[SimRequest]) -> None:
        for request in requests:
            self.counters.finished[str(request.status.finish_reason)] += 1

    def take_events(self) -> list[Event]:
        """Return the KV events since the last call."""
        events: list[Event] = self.scheduler.kv_cache_manager.block_pool.take_events()
        return events

    # -- the cache, sleep and pause

    def reset_prefix_cache(self, *, running: bool = False) -> bool:
        return bool(self.scheduler.reset_prefix_cache(running))

    def pause(self, *, clear: bool = True) -> list[SimRequest]:
        """Abort all requests and take none; return those that were aborted."""
        aborted: list[SimRequest] = self.scheduler.finish_requests(
            None, RequestStatus.FINISHED_ABORTED
        )
        self._count_ends(aborted)
        self.scheduler.pause_state = PauseState.PAUSED_NEW
        self.paused = True
        if clear:
            self.reset_prefix_cache()
        return aborted

    def resume(self) -> None:
        self.scheduler.pause_state = PauseState.UNPAUSED
        self.paused = False

    def sleep(self, level: int) -> list[SimRequest]:
        """Go to sleep; from level 1 on the cache is lost. Return the aborted requests."""
        aborted = self.pause(clear=level >= 1)
        self.sleep_level = level
        return aborted

    def wake_up(self) -> None:
        self.sleep_level = 0
        self.resume()

    @property
    def is_sleeping(self) -> bool:
        return self.sleep_level > 0

    # -- adapters

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Raise `AdapterError` if the name is taken. In place keeps its number, as vLLM does."""
        known = self.adapters.get(name)
        if known is not None and not in_place:
            raise AdapterError(
                400,
                "InvalidUserInput",
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
            )
        if known is None:
            self._adapter_numbers += 1
        number = self._adapter_numbers if known is None else known.number
        self.adapters[name] = Adapter(name, path, number, in_place)

    def unload_adapter(self, name: str) -> None:
        """Raise `AdapterError` if there is none of that name."""
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise AdapterError(404, "NotFoundError", message)

    @property
    def models(self) -> tuple[str, ...]:
        return (self.options.model, *self.adapters)

    def stats(self) -> Any:
        """Return running and waiting requests and the cache's usage without pins."""
        return self.scheduler.make_stats()
