"""Two pickers behind one port, beside a real Envoy: they agree, are counted as one, and can die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from e2e.exposition import total
from e2e.router.samples import (
    CHAT,
    DECISION,
    DESTINATION,
    VERSION,
    ask,
    declared,
    pool,
    prefix,
    undeclared,
)
from e2e.router.stack import RouterStack, surroundings
from e2e.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(240)]

WORKERS = 2
START_S = 60.0
ENOUGH = 200
"""Answers after which it would show that a dead worker is still asked: it was up to 114 times."""
DECISIONS = "promptprefix_router_decisions_total"
RESTARTS = "promptprefix_router_worker_restarts_total"


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def workers() -> AsyncIterator[RouterStack]:
    """Give a stack with a picker of two workers, which have the default table."""
    async with surroundings() as (folder, control, engines):
        settings = {"WORKERS": WORKERS}
        stack = RouterStack(folder / "envoy", control, engines, settings=settings)
        try:
            await stack.start()
            await stack.publish((prefix(),), pool(engines, warm="b"))
            await until(lambda: _ready(stack), "both workers have a table", START_S)
            yield stack
        finally:
            await stack.stop()


async def _ready(stack: RouterStack) -> bool:
    url = f"http://127.0.0.1:{stack.metrics_port}/readyz"
    try:
        return (await stack.client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _processes(stack: RouterStack) -> dict[int, int]:
    """Return the pids of the workers by their number."""
    assert stack.picker is not None
    pid = stack.picker.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for child in children:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        # One that was just made, or just ended, does not say what it is.
        if b"--number" in words:
            found[int(words[words.index(b"--number") + 1])] = int(child)
    return found


def _alive(processes: Iterable[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in processes)


async def _by_worker(stack: RouterStack) -> list[float]:
    name = "promptprefix_router_worker_decisions"
    url = f"http://127.0.0.1:{stack.metrics_port}/metrics"
    page = (await stack.client.get(url)).text
    return [total(page, name, worker=str(number)) for number in range(WORKERS)]


async def test_envoys_questions_go_to_both_and_are_counted_as_one(workers: RouterStack) -> None:
    sent = 0
    assert await workers.metric(DECISIONS) == 0

    for _ in range(4):
        answers = await asyncio.gather(*(ask(workers, declared(f"n {n}")) for n in range(64)))
        assert {each.status_code for each in answers} == {200}
        sent += len(answers)
    shares = await _by_worker(workers)
    assert min(shares) > sent / 4, "they share the work"
    assert sum(shares) == await workers.metric(DECISIONS) == sent
    assert await workers.metric("promptprefix_router_decision_seconds_count") == sent
    assert await workers.metric("promptprefix_router_endpoints", state="ready") == 3
    assert await workers.metric("promptprefix_router_workers") == WORKERS
    assert await workers.metric("process_resident_memory_bytes") > 0


async def test_they_choose_alike(workers: RouterStack) -> None:
    """Each of them is asked about long prompts that neither has seen."""
    doors = [workers.folder / name for name in ("picker.sock", "picker-1.sock")]
    bodies = [undeclared(f"talk {n} " + "x" * 2000) for n in range(12)]
    chosen: list[set[str]] = [set() for _ in bodies]
    for number, (body, found) in enumerate(zip(bodies, chosen, strict=True)):
        for door in doors if number % 2 else reversed(doors):
            transport = httpx.AsyncHTTPTransport(uds=str(door))
            async with httpx.AsyncClient(transport=transport, base_url="http://picker") as client:
                answer = await client.post(CHAT, json=body)
            found.add(answer.headers[DESTINATION].partition(",")[0])
            # What is counted as active until the next reading of Envoy's load is the worker's own.
            await workers.settled()
    assert [len(found) for found in chosen] == [1] * len(bodies)
    assert len(set.union(*chosen)) > 1


@pytest.mark.parametrize("number", [0, 1])
async def test_a_worker_that_dies_loses_no_request(workers: RouterStack, number: int) -> None:
    answers: list[int] = []
    stopping = asyncio.Event()

    async def load() -> None:
        while not stopping.is_set():
            answers.append((await ask(workers, declared())).status_code)

    async def more(count: int) -> bool:
        return len(answers) > count

    async def back() -> bool:
        return len(_processes(workers)) == WORKERS and await _ready(workers)

    tasks = [asyncio.create_task(load()) for _ in range(8)]
    await until(lambda: more(100), "load runs")
    counted, restarted = await workers.metric(DECISIONS), await workers.metric(RESTARTS)
    killed = _processes(workers)[number]
    os.kill(killed, signal.SIGKILL)
    at = len(answers)
    await until(back, "there are two again", START_S)
    await until(lambda: more(at + 100), "load goes on")
    stopping.set()
    await asyncio.gather(*tasks)
    assert set(answers) == {200}
    assert _processes(workers)[number] != killed
    assert await workers.metric(RESTARTS) == restarted + 1
    assert await workers.metric(DECISIONS) >= counted, "what it had counted is not forgotten"
    told = (await ask(workers, declared())).headers[DECISION]
    assert told == "warm;match=fingerprint"


async def test_a_worker_that_dies_is_asked_no_more_for_a_tenant(workers: RouterStack) -> None:
    """What it is asked meanwhile ends at the fence: two of each second in which it may be back."""
    salted = prefix().model_copy(update={"owner": "acme", "salt": "salt-of-acme-0123456789"})
    await workers.publish((salted,), pool(workers.engines, warm="b"))
    answers: list[int] = []
    stopping = asyncio.Event()

    async def load() -> None:
        while not stopping.is_set():
            answers.append((await ask(workers, declared(), x_team="acme")).status_code)

    killed = _processes(workers)[1]

    async def back() -> bool:
        replaced = _processes(workers).get(1, killed) != killed
        return replaced and await _ready(workers) and len(answers) > ENOUGH

    os.kill(killed, signal.SIGKILL)
    task = asyncio.create_task(load())
    await until(back, "there is another in its place", START_S)
    stopping.set()
    await task
    assert set(answers) <= {200, 503}
    assert answers.count(503) < 16
    await workers.publish((prefix(),), pool(workers.engines, warm="b"))


async def test_the_leader_ends_last_and_says_so(workers: RouterStack) -> None:
    control = workers.fake_control
    await asyncio.gather(*(ask(workers, declared()) for _ in range(32)))
    before = len(control.reports)
    processes = _processes(workers)
    await workers.stop_picker()
    reports = control.reports[before:]
    assert [each.leaving for each in reports][-1]
    assert sum(each.leaving for each in reports) == 1
    assert VERSION in {match.id for match in control.matches}
    assert not _alive(processes.values())
    await workers.start_picker()
    await until(lambda: _ready(workers), "both workers have a table", START_S)


async def test_workers_end_with_their_parent(workers: RouterStack) -> None:
    assert workers.picker is not None
    processes = _processes(workers)
    workers.picker.kill()
    await workers.picker.wait()

    async def gone() -> bool:
        return not _alive(processes.values())

    await until(gone, "no worker is left behind")
    await workers.start_picker()
    await until(lambda: _ready(workers), "both workers have a table", START_S)
