"""One task for each resource: started, ended, and started again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import CapturingLogger

from promptprefix_operator import status_tasks as module
from promptprefix_operator.status_tasks import RESTART_SECONDS, StatusTasks


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.resources: dict[str, object] = {}
        self.running: list[str] = []
        self.broken: set[str] = set()
        self._passed = asyncio.Event()
        self.tasks = StatusTasks(
            resources=lambda: self.resources, follow=self._follow, clock=lambda: self.now
        )

    async def _follow(self, uid: str) -> None:
        if uid in self.broken:
            raise KeyError(uid)
        self.running.append(uid)
        try:
            await asyncio.Event().wait()
        finally:
            self.running.remove(uid)

    async def passed(self) -> None:
        await self._passed.wait()

    async def see(self, *uids: str) -> list[str]:
        """Make one pass over these resources and return whose tasks run."""
        self.resources = dict.fromkeys(uids)
        self._passed.set()
        self._passed = asyncio.Event()
        for _ in range(10):
            await asyncio.sleep(0)
        return sorted(self.running)


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    task = asyncio.create_task(bench.tasks.run(bench.passed))
    await asyncio.sleep(0)
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert bench.running == []


async def test_tasks_come_and_go_with_their_resources() -> None:
    async with running() as bench:
        assert await bench.see("a", "b") == ["a", "b"]
        assert await bench.see("b", "c") == ["b", "c"]
        assert await bench.see() == []
        assert await bench.see("a") == ["a"]


async def test_a_failure_touches_no_other_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(module, "log", log)
    async with running() as bench:
        bench.broken = {"a"}
        assert await bench.see("a", "b") == ["b"]
        await bench.see("a", "b")
        bench.broken = set()
        assert await bench.see("a", "b") == ["b"], "not in a hot loop"
        assert [call.args for call in log.calls] == [("a status is no longer kept",)]
        bench.now += RESTART_SECONDS
        assert await bench.see("a", "b") == ["a", "b"]
