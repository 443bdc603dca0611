"""The watch over a namespace: what it says, keeps, drops and heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from promptprefix.placement import Plan
from promptprefix_operator import namespace_watch as module
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.handlers import WatchEndedError
from promptprefix_operator.namespace_watch import FORGET_SECONDS, REMIND_SECONDS, NamespaceWatch
from promptprefix_operator.publication import Publication

FORBIDDEN = ApiError(403, 'pods is forbidden: cannot list resource "pods" in the namespace "ml"')
DOWN = ApiError(0, "no connection")


def pod(name: str, namespace: str = "ml") -> dict[str, Any]:
    return {"metadata": {"uid": f"u-{name}", "namespace": namespace, "name": name}}


class Bench:
    """A watch whose readings and endings the test decides. ``now`` is the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wakes = 0
        self.watched: list[bool] = []
        self.cluster = Cluster(lambda: None)
        self.publication = Publication(1)
        self._answers: asyncio.Queue[ApiError | None] = asyncio.Queue()
        self._asked = asyncio.Event()
        self._ends: asyncio.Future[None] = asyncio.Future()
        self.watch = NamespaceWatch(
            namespace="ml",
            observer=self,  # type: ignore[arg-type]
            cluster=self.cluster,
            publication=self.publication,
            follow=self._follow,
            watched=self.watched.append,
            wake=self._wake,
            clock=lambda: self.now,
        )

    def _wake(self) -> None:
        self.wakes += 1

    async def read(self) -> None:
        self._asked.set()
        error = await self._answers.get()
        if error is not None:
            raise error
        self.cluster.see_pod(pod("p"))

    async def keep_texts(self, passed: Callable[[], Awaitable[None]]) -> None:
        await asyncio.Event().wait()

    async def keep_fresh(self) -> None:
        await asyncio.Event().wait()

    async def keep_swept(self) -> None:
        await asyncio.Event().wait()

    async def keep_pools(
        self, stop: Callable[[], None], passed: Callable[[], Awaitable[None]]
    ) -> None:
        await asyncio.Event().wait()

    async def _follow(self, stop: Callable[[], None]) -> None:
        self._ends = asyncio.Future()
        await self._ends
        raise WatchEndedError("cannot watch resource")

    async def answer(self, error: ApiError | None = None) -> None:
        """Answer a reading and return when there is the next, or the watch works."""
        await asyncio.wait_for(self._asked.wait(), 5)
        self._asked.clear()
        self._answers.put_nowait(error)
        for _ in range(20):
            await asyncio.sleep(0)

    async def break_off(self) -> None:
        """End the watch and return when the namespace is read anew."""
        self._ends.set_result(None)
        await asyncio.wait_for(self._asked.wait(), 5)

    def plan(self) -> None:
        self.publication.publish(Plan({}, (), (), {}, frozenset()))


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(Backoff, "next", lambda _: 0.0)
    monkeypatch.setattr(module, "STEADY_SECONDS", 0.0)
    bench = Bench()
    task = asyncio.create_task(bench.watch.run(lambda: None))
    try:
        yield bench
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_namespace_is_known_once_a_plan_has_seen_its_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as bench:
        bench.plan()
        assert (bench.watch.known, bench.watch.tried.is_set()) == (False, False)
        await bench.answer()
        assert (bench.watch.known, bench.watch.tried.is_set(), bench.wakes) == (False, True, 1)
        bench.plan()
        assert bench.watch.known
        assert bench.watched == [False, True]


async def test_a_refusal_is_told_with_the_remedy_and_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(module, "log", log)
    async with running(monkeypatch) as bench:
        for _ in range(3):
            await bench.answer(FORBIDDEN)
        assert bench.watch.tried.is_set()
        [told] = log.calls
        assert told.kwargs["error"] == str(FORBIDDEN)
        assert "chart's value namespaces" in told.kwargs["remedy"]
        bench.now += REMIND_SECONDS
        await bench.answer(FORBIDDEN)
        assert len(log.calls) == 2
        await bench.answer()
        assert log.calls[-1].args == ("namespace watched again",)
        assert bench.watched[-1]


async def test_what_is_known_outlives_a_slip_in_the_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as bench:
        await bench.answer()
        bench.plan()
        await bench.break_off()
        assert not bench.watched[-1]
        await bench.answer(FORBIDDEN)
        bench.now += FORGET_SECONDS - 1
        await bench.answer(FORBIDDEN)
        assert (set(bench.cluster.pods), bench.watch.known) == ({"u-p"}, True)
        await bench.answer()
        await bench.break_off()
        bench.now += FORGET_SECONDS - 1
        await bench.answer(FORBIDDEN)
        assert set(bench.cluster.pods) == {"u-p"}, "the time counts from the last good reading"


async def test_a_lasting_refusal_drops_everything_of_this_namespace_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as bench:
        bench.cluster.see_pod(pod("far", "theirs"))
        await bench.answer()
        await bench.break_off()
        await bench.answer(FORBIDDEN)
        bench.now += FORGET_SECONDS
        await bench.answer(FORBIDDEN)
        assert set(bench.cluster.pods) == {"u-far"}
        bench.plan()
        assert bench.watch.known, "its pods are told to let go"


async def test_an_outage_drops_nothing_and_a_new_leader_waits_for_it_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as bench:
        for _ in range(3):
            await bench.answer(DOWN)
            bench.now += FORGET_SECONDS
            bench.plan()
        assert (bench.watch.known, bench.watch.tried.is_set()) == (False, False)
        await bench.answer()
        await bench.break_off()
        for _ in range(3):
            await bench.answer(DOWN)
            bench.now += FORGET_SECONDS
        assert set(bench.cluster.pods) == {"u-p"}
