"""The time in which others could be heard."""

from __future__ import annotations

import asyncio

import pytest

from promptprefix_operator.attention import HEARD_S, LOOK_S, Attention


class Machine:
    """A clock, and an event loop that looks ``late`` seconds after it wanted to."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.late: list[float] = []
        self.done = asyncio.Event()
        self.attention = Attention(lambda: self.seconds, self.sleep)

    async def sleep(self, seconds: float) -> None:
        if not self.late:
            self.done.set()
            await asyncio.Event().wait()
        self.seconds += seconds + self.late.pop(0)

    async def run(self, *late: float) -> float:
        """Return how much time counts of that which passes."""
        began = self.attention.now()
        self.late = list(late)
        task = asyncio.create_task(self.attention.keep())
        await self.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.attention.now() - began


async def test_all_time_counts_while_the_loop_runs() -> None:
    assert await Machine().run(0.0, 0.1, 0.4, 0.0) == pytest.approx(4 * LOOK_S + 0.5)


async def test_of_a_time_without_a_processor_next_to_nothing_counts() -> None:
    assert await Machine().run(0.0, 60.0, 0.0) == pytest.approx(2 * LOOK_S + HEARD_S)


async def test_between_two_looks_it_runs_with_the_clock_and_never_back() -> None:
    machine = Machine()
    began = machine.attention.now()
    seen = []
    for _ in range(10):
        machine.seconds += 0.25
        seen.append(machine.attention.now() - began)
    assert seen == [0.25, 0.5, 0.75, 1.0, 1.25, *[HEARD_S] * 5]
    machine.attention.look()
    assert machine.attention.now() - began == HEARD_S
