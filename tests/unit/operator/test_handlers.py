"""How kopf is run: what it may write, whose signals it gets, and what its end touches."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

import kopf
import pytest

from promptprefix.resource import GROUP, PLURAL
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.handlers import WatchEndedError, follow, kopf_settings, registry_of


async def login() -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server="http://127.0.0.1:1")


def test_kopf_has_no_reason_to_write() -> None:
    registry = registry_of(login, Cluster(lambda: None))
    assert len(registry._watching.get_all_handlers()) == 3
    writers = (registry._changing, registry._spawning, registry._indexing, registry._webhooks)
    assert [len(each.get_all_handlers()) for each in writers] == [0, 0, 0, 0]
    settings = kopf_settings()
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert settings.persistence.finalizer not in ("promptprefix.dev/finalizer", f"{PLURAL}.{GROUP}")


class Kopf:
    """Tasks as kopf spawns them; ``fail`` makes one of them raise."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.error: Exception | None = None
        self.failing = asyncio.Event()

    async def spawn_tasks(self, **_: Any) -> list[asyncio.Task[None]]:
        async def fail() -> None:
            await self.failing.wait()
            assert self.error is not None
            raise self.error

        async def idle() -> None:
            await asyncio.Event().wait()

        works: tuple[Coroutine[Any, Any, None], ...] = (idle(), fail())
        self.tasks = [asyncio.create_task(each) for each in works]
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.failing.set)
        return self.tasks


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Kopf:
    fake = Kopf()
    monkeypatch.setattr(kopf, "spawn_tasks", fake.spawn_tasks)
    return fake


async def test_the_end_of_one_watch_leaves_younger_tasks_alone(fake: Kopf) -> None:
    registry = registry_of(login, Cluster(lambda: None))
    watching = asyncio.create_task(follow("ml", registry, lambda: None))
    await asyncio.sleep(0)
    younger = asyncio.create_task(asyncio.Event().wait())
    fake.error = PermissionError("cannot watch resource pods", {"kind": "Status"})
    fake.failing.set()
    with pytest.raises(WatchEndedError, match=r"^cannot watch resource pods$"):
        await watching
    assert all(task.done() for task in fake.tasks)
    assert not younger.done()
    younger.cancel()


async def test_the_signals_stay_the_processs(fake: Kopf) -> None:
    stopped = asyncio.Event()
    registry = registry_of(login, Cluster(lambda: None))
    watching = asyncio.create_task(follow("ml", registry, stopped.set))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stopped.wait(), 5)
    assert not fake.failing.is_set()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert all(task.cancelled() for task in fake.tasks)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
