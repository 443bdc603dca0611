"""One task for each resource that keeps its status in line with the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping

import structlog

RESTART_SECONDS = 10.0

log = structlog.get_logger(__name__)


class StatusTasks:
    """Starts ``follow(uid)`` for each of ``resources()`` and ends it when the resource is gone.

    A task that fails is started again `RESTART_SECONDS` later: it must not take the others along.
    """

    def __init__(
        self,
        *,
        resources: Callable[[], Mapping[str, object]],
        follow: Callable[[str], Coroutine[None, None, None]],
        clock: Callable[[], float],
    ) -> None:
        self._resources = resources
        self._follow = follow
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, float] = {}

    async def run(self, passed: Callable[[], Awaitable[None]]) -> None:
        """Look after each pass, for ever."""
        try:
            while True:
                self._step()
                await passed()
        finally:
            await self._cancel(list(self._tasks))

    def _step(self) -> None:
        resources = self._resources()
        for uid in self._tasks.keys() - resources.keys():
            self._tasks.pop(uid).cancel()
        for uid in [uid for uid, task in self._tasks.items() if task.done()]:
            error = self._tasks.pop(uid).exception()
            log.error("a status is no longer kept", resource_uid=uid, exc_info=error)
            self._failed[uid] = self._clock()
        self._failed = {
            uid: since
            for uid, since in self._failed.items()
            if uid in resources and self._clock() - since < RESTART_SECONDS
        }
        for uid in resources.keys() - self._tasks.keys() - self._failed.keys():
            self._tasks[uid] = asyncio.create_task(self._follow(uid))

    async def _cancel(self, uids: list[str]) -> None:
        tasks = [self._tasks.pop(uid) for uid in uids]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
