"""Statuses of many resources while the API server is away: few requests, few lines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from promptprefix_operator import status_writer as module
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.status_writer import StatusWriter
from tests.unit.operator.test_status_writer import BODY, WARM

RESOURCES = 300
AT_ONCE = 16
SILENCE = ApiError(0, "no connection")
BROKEN = ApiError(500, "a webhook failed")


class Api:
    """Answers with the error that is set for all, or for one resource."""

    def __init__(self) -> None:
        self.tries = 0
        self.written: set[str] = set()
        self.error: ApiError | None = None
        self.broken: set[str] = set()

    async def patch(
        self, path: str, body: Mapping[str, Any], kind: str, query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        self.tries += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        uid = body["metadata"]["uid"]
        if uid in self.broken:
            raise BROKEN
        self.written.add(uid)
        return body_of(uid, status=body["status"])


def body_of(uid: str, **more: Any) -> Mapping[str, Any]:
    return {**BODY, "metadata": {**BODY["metadata"], "uid": uid, "name": uid}, **more}


class Fleet:
    """The writers' tasks. ``now`` is their clock."""

    def __init__(self) -> None:
        self.api, self.now = Api(), 0.0
        self.cluster = Cluster(lambda: None)
        self._passed = asyncio.Event()
        writer = StatusWriter(
            api=self.api,  # type: ignore[arg-type]
            cluster=self.cluster,
            controller=self,  # type: ignore[arg-type]
            events=self,  # type: ignore[arg-type]
            metrics=Metrics(),
            clock=lambda: self.now,
            rewrite_seconds=30,
        )
        uids = [f"u{number}" for number in range(RESOURCES)]
        for uid in uids:
            self.cluster.see_resource(body_of(uid))
        self.tasks = [asyncio.create_task(writer.follow(uid, self._pass)) for uid in uids]

    def status(self, uid: str) -> Any:
        return WARM

    def post(self, notice: object) -> None:
        pass

    async def _pass(self) -> None:
        await self._passed.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and all have a look."""
        self.now += seconds
        self._passed.set()
        self._passed = asyncio.Event()
        for _ in range(100):
            await asyncio.sleep(0)

    async def end(self) -> None:
        assert not any(task.done() for task in self.tasks)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    log = CapturingLogger()
    log.bind = lambda **_: CapturingLogger()  # of transitions, which are told elsewhere
    monkeypatch.setattr(module, "log", log)
    return log


async def test_an_outage_is_told_seldom_and_asked_about_seldom(told: CapturingLogger) -> None:
    fleet = Fleet()
    fleet.api.error = SILENCE
    for _ in range(200):
        await fleet.advance(3.0)
    assert fleet.api.tries <= AT_ONCE * 50, "sixteen at once, and then pauses of up to 30 s"
    assert 5 <= len(told.calls) <= 11, "one line a minute at most"
    assert told.calls[0].kwargs["error"] == str(SILENCE)
    assert told.calls[-1].kwargs["failing"] <= RESOURCES
    fleet.api.error = None
    async with asyncio.timeout(10):
        while len(fleet.api.written) < RESOURCES:
            await fleet.advance(3.0)
    assert told.calls[-1].args == ("statuses are written again",)
    await fleet.end()


async def test_one_that_always_fails_holds_up_the_others_for_a_moment_only(
    told: CapturingLogger,
) -> None:
    fleet = Fleet()
    fleet.api.broken = {"u7"}
    async with asyncio.timeout(10):
        while len(fleet.api.written) < RESOURCES - 1:
            await fleet.advance(0.1)
    assert fleet.now < 5
    assert len(told.calls) == 1
    assert told.calls[0].kwargs["prefix"] == "u7"
    await fleet.end()
