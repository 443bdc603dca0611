"""Drives an engine core in real time: steps while there is work, crashes, restarts and faults.

An idle engine costs nothing: the task that steps it lives only while requests do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from e2e.simulator.engine_core import EngineCore
from e2e.simulator.kv_events import EventLog
from e2e.simulator.options import Fault, SimulatorOptions
from e2e.simulator.scheduler import StepResult
from e2e.simulator.sim_request import RequestStatus, SimRequest

HELD_BACK_SECONDS = 0.005
"""How long to wait after a step that could schedule nothing; real engines spin."""


class EngineDownError(ConnectionError):
    """Nothing listens: it has crashed, or is still starting."""


class EngineGoneError(ConnectionError):
    """The engine crashed while the request was in it."""


@dataclass(frozen=True)
class Clock:
    """``wall`` is Unix seconds. Steps wait in real time, divided by the timing's speed."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class SimulatedEngine:
    """One engine that may end and start anew; ``boot`` counts its lives.

    ``publish`` gets the frames of every batch of KV events.
    """

    def __init__(self, options: SimulatorOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or Clock()
        self.boot = 0
        self.publish: Callable[[tuple[bytes, bytes, bytes]], None] | None = None
        self.events = EventLog(options.topic)
        self.requests_seen = 0
        self._faults: list[Fault] = []
        self._waiters: dict[str, asyncio.Queue[StepResult | None]] = {}
        self._driver: asyncio.Task[None] | None = None
        self.core = self._start(0.0)

    def _start(self, after_s: float) -> EngineCore:
        self.boot += 1
        self._up_at = self.clock.monotonic() + after_s + self.options.start_seconds
        self.events = EventLog(self.options.topic)
        # Two starts in one tick of the clock must still differ, as processes' do.
        self.core = EngineCore(self.options, self.clock.wall() + self.boot * 1e-3)
        return self.core

    @property
    def up(self) -> bool:
        return self.clock.monotonic() >= self._up_at

    def crash(self) -> None:
        """End the engine: clients lose their connections, and nothing listens."""
        self._up_at = float("inf")
        if self._driver is not None:
            self._driver.cancel()
            self._driver = None
        for waiter in self._waiters.values():
            waiter.put_nowait(None)
        self._waiters.clear()

    def restart(self, after_s: float = 0.0, **change: object) -> None:
        """Crash, and start anew with an empty cache; ``change`` alters its options."""
        self.crash()
        self.options = replace(self.options, **change)  # type: ignore[arg-type]
        self._start(after_s)

    def fail(self, fault: Fault) -> None:
        """Let the next requests that the fault fits go wrong."""
        self._faults.append(fault)

    def take_fault(self, path: str) -> Fault | None:
        """Return what shall go wrong with a request, counting it."""
        found = next((each for each in self._faults if path.startswith(each.path)), None)
        if found is None:
            return None
        self._faults.remove(found)
        if found.times > 1:
            self._faults.insert(0, replace(found, times=found.times - 1))
        return found

    # -- requests

    async def run(self, request: SimRequest) -> AsyncGenerator[StepResult, None]:
        """Yield the request's tokens until its end; leaving the loop early aborts it.

        Raises `EngineGoneError` if the engine ends first. A request that the engine itself aborts
        yields nothing more.
        """
        queue: asyncio.Queue[StepResult | None] = asyncio.Queue()
        self._waiters[request.request_id] = queue
        core = self.core
        core.add(request)
        self.drive()
        try:
            while True:
                result = await queue.get()
                if result is None:
                    if request.status is RequestStatus.FINISHED_ABORTED:
                        return
                    raise EngineGoneError("the engine is gone")
                yield result
                if result.last:
                    return
        finally:
            self._waiters.pop(request.request_id, None)
            if not request.is_finished and core is self.core:
                core.abort(request.request_id)

    def drive(self) -> None:
        """See to it that the engine steps as long as there is work."""
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._steps(self.core), name="simulated engine")
            self._driver.add_done_callback(self._stopped)

    def _stopped(self, driver: asyncio.Task[None]) -> None:
        """A failure in a step ends the engine, as it ends vLLM's; nobody waits for it forever."""
        if driver.cancelled() or driver.exception() is None:
            return
        self.crash()
        context = {"message": "a simulated engine failed", "exception": driver.exception()}
        driver.get_loop().call_exception_handler(context)

    async def _steps(self, core: EngineCore) -> None:
        timing = self.options.timing
        while core.has_work():
            step = core.schedule()
            idle = not step.num_scheduled_tokens
            seconds = timing.seconds(step.prefilled, step.decoded)
            await asyncio.sleep(HELD_BACK_SECONDS if idle else seconds)
            for result in core.complete(step, self.clock.wall()):
                waiter = self._waiters.get(result.request.request_id)
                if waiter is not None:
                    waiter.put_nowait(result)
            self.flush_events()

    def flush_events(self) -> None:
        """Publish what happened in the cache."""
        events = self.core.take_events()
        if events:
            frames = self.events.record(events, self.clock.wall())
            if self.publish is not None:
                self.publish(frames)

    # -- sleep and pause

    def sleep(self, level: int) -> None:
        """Put the engine to sleep; its requests are aborted."""
        self._tell_aborted(self.core.sleep(level))

    def pause(self) -> None:
        """Abort all requests and take no new ones."""
        self._tell_aborted(self.core.pause())

    def resume(self) -> None:
        """Wake up or go on."""
        self.core.wake_up()
        self.drive()

    def _tell_aborted(self, requests: list[SimRequest]) -> None:
        for request in requests:
            waiter = self._waiters.get(request.request_id)
            if waiter is not None:
                waiter.put_nowait(None)
