"""Keeps workers running: each is a whole picker, and knows of no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from promptprefix_router.control.control_link import BACKOFF, Backoff
from promptprefix_router.doors.http_door import HttpRequest, HttpResponse
from promptprefix_router.http_connection import Answer
from promptprefix_router.matching.near_misses import EXAMPLES
from promptprefix_router.matching.near_misses import PATH as NEAR_MISSES
from promptprefix_router.metrics import NAMESPACE
from promptprefix_router.workers.pages import Pages
from promptprefix_router.workers.worker_link import NoAnswerError

LEADER = 0
"""The worker that writes Envoy's files, and ends last."""

LOOK_S = 5.0
"""Time between two looks at a worker; what it counted since the last one is lost if it dies."""
STUCK_S = 60.0
"""A worker that answers nothing for so long is killed."""
STEADY_S = 60.0
"""A worker that ends after so long is started again at once."""

_TEXT = (("content-type", "text/plain"),)


class WorkerProcess(Protocol):
    """A worker that runs."""

    async def wait(self) -> int:
        """Return its exit status when it has ended."""

    def terminate(self) -> None:
        """Tell it to end."""

    def kill(self) -> None:
        """End it."""

    async def ask(self, path: str) -> Answer:
        """Return its answer to a GET. Raises `NoAnswerError`."""


class StartError(Exception):
    """A worker ended before all of them had begun: there is something that none can mend."""


class Supervisor:
    """Runs ``count`` workers until it is told to stop, and answers for all of them.

    ``spawn`` starts the worker with a number. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        count: int,
        spawn: Callable[[int], Awaitable[WorkerProcess]],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._count = count
        self._spawn = spawn
        self._clock = clock
        self._sleep = sleep
        self._backoff = backoff
        self._running: dict[int, WorkerProcess] = {}
        self._answered: dict[int, float] = {}
        self._begun: set[int] = set()
        self._stopping = False
        self._pages = Pages()
        self._log = structlog.get_logger("workers")
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        workers = Gauge(
            "workers", "Workers that run.", namespace=NAMESPACE, registry=self._registry
        )
        workers.set_function(lambda: len(self._running))
        self._restarts = Counter(
            "worker_restarts",
            "Workers started in place of one that ended.",
            namespace=NAMESPACE,
            registry=self._registry,
        )
        self._decisions = Gauge(
            "worker_decisions",
            "Decisions of each worker since it began.",
            ["worker"],
            namespace=NAMESPACE,
            registry=self._registry,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop``; then end all workers, the leader last. Raises `StartError`."""
        keeping = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
        watching = asyncio.create_task(self._watch())
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait(
                [*keeping, watching, stopped], return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
        finally:
            self._stopping = True
            watching.cancel()
            stopped.cancel()
            await self._end()
            for each in keeping:
                each.cancel()
            await asyncio.gather(*keeping, watching, stopped, return_exceptions=True)

    async def _end(self) -> None:
        leader = self._running.get(LEADER)
        others = [each for number, each in self._running.items() if number != LEADER]
        for group in (others, [leader] if leader is not None else []):
            for each in group:
                each.terminate()
            await asyncio.gather(*(each.wait() for each in group))

    async def _keep(self, number: int) -> None:
        failures = 0
        while True:
            began = self._clock()
            cause = await self._ended(number, began)
            if self._stopping:
                return
            if len(self._begun) < self._count:
                raise StartError(f"worker {number} {cause}")
            failures = 1 if self._clock() - began >= STEADY_S else failures + 1
            self._restarts.inc()
            self._log.error("worker ended, it is started again", worker=number, cause=cause)
            await self._sleep(self._backoff.delay(failures))
            if self._stopping:
                return

    async def _ended(self, number: int, began: float) -> str:
        """Start a worker; return how it ended once it has."""
        try:
            worker = await self._spawn(number)
        except OSError as error:
            return f"can't be started: {error}"
        self._running[number], self._answered[number] = worker, began
        status = await worker.wait()
        del self._running[number]
        self._pages.end(number)
        return f"ended with status {status}"

    async def _watch(self) -> None:
        while True:
            await self.look()
            begins = len(self._begun) < self._count
            await self._sleep(LOOK_S / 50 if begins else LOOK_S)

    async def look(self) -> None:
        """Keep what workers have counted, and kill those that are stuck."""
        await self._ask_all("/metrics")
        for number, worker in list(self._running.items()):
            if self._clock() - self._answered[number] > STUCK_S:
                self._log.error("worker does not answer, it is killed", worker=number)
                worker.kill()

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer for all workers, what a picker alone answers for itself."""
        path = request.path
        if path == "/healthz":
            return HttpResponse(200, _TEXT, b"ok\n")
        if path == "/readyz":
            found = await self._ask_all(path)
            ready = sum(each.status == 200 for each in found.values())
            if ready == self._count:
                return HttpResponse(200, _TEXT, b"ok\n")
            return HttpResponse(503, _TEXT, b"%d of %d workers\n" % (ready, self._count))
        if path == "/metrics":
            await self._ask_all(path)
            return HttpResponse(200, (("content-type", CONTENT_TYPE_LATEST),), self._page())
        if path == NEAR_MISSES:
            found = await self._ask_all(path)
            headers = (("content-type", "application/json"), ("cache-control", "no-store"))
            return HttpResponse(200, headers, _near_misses(found))
        return HttpResponse(404)

    def _page(self) -> bytes:
        self._decisions.clear()
        for worker, count in self._pages.decisions().items():
            self._decisions.labels(worker).set(count)
        return self._pages.joined(generate_latest(self._registry).decode())

    async def _ask_all(self, path: str) -> Mapping[int, Answer]:
        """Return the answers of those that answer in time."""
        asked = list(self._running.items())
        answers = await asyncio.gather(
            *(worker.ask(path) for _, worker in asked), return_exceptions=True
        )
        found: dict[int, Answer] = {}
        for (number, worker), answer in zip(asked, answers, strict=True):
            if isinstance(answer, NoAnswerError) or self._running.get(number) is not worker:
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[number] = answer
            self._answered[number] = self._clock()
            self._begun.add(number)
            if path == "/metrics":
                self._pages.keep(number, answer.body.decode())
        return found


def _near_misses(found: Mapping[int, Answer]) -> bytes:
    pages = [json.loads(each.body) for each in found.values()]
    examples = [example for page in pages for example in page["nearMisses"]]
    examples.sort(key=lambda example: str(example["time"]), reverse=True)
    undeclared: dict[str, int] = {}
    for page in pages:
        for cause, count in page["undeclared"].items():
            undeclared[cause] = undeclared.get(cause, 0) + count
    body = {"nearMisses": examples[:EXAMPLES], "undeclared": dict(sorted(undeclared.items()))}
    return json.dumps(body).encode()
