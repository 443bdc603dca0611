"""Workers of one router: one page of what they count, and what happens when one ends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import pytest
import uvloop

from promptprefix_router.control.control_link import Backoff
from promptprefix_router.doors.http_door import HttpRequest
from promptprefix_router.http_connection import Answer
from promptprefix_router.workers import supervisor
from promptprefix_router.workers.pages import Pages
from promptprefix_router.workers.supervisor import LEADER, STUCK_S, StartError, Supervisor
from promptprefix_router.workers.worker_link import NoAnswerError, WorkerLink

COUNT = 3
TEXT = """# HELP promptprefix_router_decisions_total Decisions.
# TYPE promptprefix_router_decisions_total counter
promptprefix_router_decisions_total{{match="head",outcome="warm"}} {decisions}
# HELP promptprefix_router_decision_seconds Time.
# TYPE promptprefix_router_decision_seconds histogram
promptprefix_router_decision_seconds_bucket{{le="0.1"}} {decisions}
promptprefix_router_decision_seconds_bucket{{le="+Inf"}} {decisions}
promptprefix_router_decision_seconds_count {decisions}
promptprefix_router_decision_seconds_sum 0.5
# HELP promptprefix_router_endpoints Endpoints.
# TYPE promptprefix_router_endpoints gauge
promptprefix_router_endpoints{{state="ready"}} {ready}
# HELP promptprefix_router_memo_entries Remembered.
# TYPE promptprefix_router_memo_entries gauge
promptprefix_router_memo_entries 7.0
"""
NAME = "promptprefix_router_decisions_total"


def page(decisions: int, ready: int = 4) -> str:
    return TEXT.format(decisions=float(decisions), ready=float(ready))


def lines(joined: bytes) -> dict[str, float]:
    """Return the values of a page by name and labels."""
    rows = (row.rpartition(" ") for row in joined.decode().splitlines() if row[:1] != "#")
    return {name: float(value) for name, _, value in rows}


def test_counters_are_summed_and_what_all_show_is_shown_once() -> None:
    pages = Pages()
    pages.keep(0, page(3, ready=4))
    pages.keep(1, page(5, ready=2))
    found = lines(pages.joined("# TYPE own gauge\nown 1.0\n"))
    assert found == {
        NAME + '{match="head",outcome="warm"}': 8,
        'promptprefix_router_decision_seconds_bucket{le="0.1"}': 8,
        'promptprefix_router_decision_seconds_bucket{le="+Inf"}': 8,
        "promptprefix_router_decision_seconds_count": 8,
        "promptprefix_router_decision_seconds_sum": 1,
        'promptprefix_router_endpoints{state="ready"}': 4,
        "promptprefix_router_memo_entries": 14,
        "own": 1,
    }
    assert pages.decisions() == {0: 3, 1: 5}
    assert lines(pages.joined("")) == {k: v for k, v in found.items() if k != "own"}


def test_counters_never_fall_when_a_worker_ends() -> None:
    pages = Pages()
    key = NAME + '{match="head",outcome="warm"}'
    totals = []
    for number, decisions in ((0, 3), (1, 5), (1, 6)):
        pages.keep(number, page(decisions))
        totals.append(lines(pages.joined(""))[key])
    pages.end(1)
    totals.append(lines(pages.joined(""))[key])
    pages.keep(1, page(1))
    totals.append(lines(pages.joined(""))[key])
    pages.end(1)
    pages.end(0)
    found = lines(pages.joined(""))
    assert [*totals, found[key]] == [3, 8, 9, 9, 10, 10]
    assert "promptprefix_router_memo_entries" not in found, "what is gone holds nothing"


class Fake:
    """A worker that answers and ends as it is told."""

    def __init__(self, number: int, log: list[tuple[str, int]]) -> None:
        self.number = number
        self.log = log
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ready = True
        self.hangs = False
        self.decisions = 1

    async def wait(self) -> int:
        return await asyncio.shield(self.status)

    def terminate(self) -> None:
        self.log.append(("terminate", self.number))
        self.end(0)

    def kill(self) -> None:
        self.log.append(("kill", self.number))
        self.end(-9)

    def end(self, status: int) -> None:
        if not self.status.done():
            self.status.set_result(status)

    async def ask(self, path: str) -> Answer:
        await asyncio.sleep(0)
        if self.hangs or self.status.done():
            raise NoAnswerError("gone")
        if path == "/metrics":
            return Answer(200, page(self.decisions).encode())
        if path == "/near-misses":
            misses = [{"time": f"2026-11-30T00:00:0{self.number}+00:00", "prefix": "p"}]
            body = {"nearMisses": misses, "undeclared": {"other-text": 1 + self.number}}
            return Answer(200, json.dumps(body).encode())
        return Answer(200 if self.ready else 503, b"")


class Stand:
    """A supervisor of fakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[tuple[str, int]] = []
        self.started: list[Fake] = []
        self.pauses: list[float] = []
        self.refusals = 0
        self.stop = asyncio.Event()
        self.supervisor = Supervisor(
            COUNT, self.spawn, lambda: self.now, self.sleep, Backoff(1.0, 8.0)
        )
        self.task = asyncio.create_task(self.supervisor.run(self.stop))

    async def spawn(self, number: int) -> Fake:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError("no process to be had")
        self.started.append(Fake(number, self.log))
        return self.started[-1]

    async def sleep(self, seconds: float) -> None:
        if seconds not in (supervisor.LOOK_S, supervisor.LOOK_S / 50):
            self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never comes")

    async def get(self, path: str) -> tuple[int, bytes]:
        answer = await self.supervisor.answer(HttpRequest("GET", path, {}, b""))
        return answer.status, answer.body

    async def begun(self) -> Stand:
        await self.until(lambda: len(self.started) == COUNT)
        assert (await self.get("/readyz"))[0] == 200
        return self

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def test_others_end_before_the_leader() -> None:
    stand = await Stand().begun()
    await stand.end()
    assert [number for _, number in stand.log] == [1, 2, LEADER]
    assert len(stand.started) == COUNT, "none is started again"


async def test_a_worker_that_ends_is_started_again_ever_later() -> None:
    stand = await Stand().begun()
    for restart in range(5):
        stand.started[-1 if restart else 1].end(1)
        await stand.until(lambda before=COUNT + restart: len(stand.started) > before)  # type: ignore[misc]
    assert {each.number for each in stand.started[COUNT:]} == {1}
    for pause, whole in zip(stand.pauses, (1, 2, 4, 8, 8), strict=True):
        assert whole / 2 <= pause <= whole
    stand.now += supervisor.STEADY_S
    stand.started[-1].end(1)
    await stand.until(lambda: len(stand.started) == COUNT + 6)
    assert stand.pauses[-1] <= 1
    _, metrics = await stand.get("/metrics")
    assert lines(metrics)["promptprefix_router_worker_restarts_total"] == 6
    await stand.end()


async def test_workers_that_cannot_start_end_the_router() -> None:
    stand = Stand()
    await stand.until(lambda: len(stand.started) == COUNT)
    stand.started[1].hangs = True
    stand.started[1].end(2)
    with pytest.raises(StartError, match="worker 1 ended with status 2"):
        await stand.task
    assert all(each.status.done() for each in stand.started)


async def test_ready_are_all_or_none() -> None:
    stand = await Stand().begun()
    stand.started[2].ready = False
    assert await stand.get("/readyz") == (503, b"2 of 3 workers\n")
    assert (await stand.get("/healthz"))[0] == 200
    stand.started[2].ready = True
    stand.started[0].hangs = True
    assert (await stand.get("/readyz"))[0] == 503
    assert (await stand.get("/other"))[0] == 404
    await stand.end()


async def test_a_worker_that_is_stuck_is_killed() -> None:
    stand = await Stand().begun()
    stand.started[1].hangs = True
    stand.now += STUCK_S
    await stand.supervisor.look()
    assert stand.log == []
    stand.now += 1
    await stand.until(lambda: len(stand.started) > COUNT)
    assert ("kill", 1) in stand.log
    assert {number for _, number in stand.log} == {1}
    await stand.end()


async def test_a_page_has_what_a_busy_worker_last_told() -> None:
    stand = await Stand().begun()
    key = NAME + '{match="head",outcome="warm"}'
    assert lines((await stand.get("/metrics"))[1])[key] == COUNT
    stand.started[0].hangs = True
    stand.started[1].decisions = 11
    found = lines((await stand.get("/metrics"))[1])
    assert found[key] == COUNT + 10
    assert found['promptprefix_router_worker_decisions{worker="1"}'] == 11
    assert found["promptprefix_router_workers"] == COUNT
    await stand.end()


async def test_near_misses_of_all_are_told_the_latest_first() -> None:
    stand = await Stand().begun()
    told = json.loads((await stand.get("/near-misses"))[1])
    assert [each["time"][18] for each in told["nearMisses"]] == ["2", "1", "0"]
    assert told["undeclared"] == {"other-text": 6}
    await stand.end()


async def test_a_worker_that_cannot_be_started_again_just_now_is_started_later() -> None:
    stand = await Stand().begun()
    stand.refusals = 2
    stand.started[1].end(-9)
    await stand.until(lambda: len(stand.started) == COUNT + 1)
    assert len(stand.pauses) == 3
    assert not stand.task.done()
    await stand.end()


def test_who_still_waits_when_a_worker_ends_hears_no_answer() -> None:
    """On the loop that serves: it takes a write to what has ended for a mistake."""

    async def asked() -> list[Answer | BaseException]:
        own, other = socket.socketpair()
        own.setblocking(False)
        link = await WorkerLink.over(own)
        questions = [asyncio.create_task(link.ask("/metrics")) for _ in range(3)]
        await asyncio.sleep(0.01)
        other.close()
        link.close()
        answers = await asyncio.gather(*questions, return_exceptions=True)
        return [*answers, *await asyncio.gather(link.ask("/readyz"), return_exceptions=True)]

    assert [type(each) for each in uvloop.run(asked())] == [NoAnswerError] * 4
