"""The lanes that carry out the plan: short actions on time, long ones one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from promptprefix.resource import OnIdle
from promptprefix_sidecar.actions import KeepAction, Policy, Touch, WarmAction
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.plan import Plan, plan
from promptprefix_sidecar.snapshot import FOREVER


class Runs(Protocol):
    """What carries out an action."""

    async def run(self, action: KeepAction | Touch | WarmAction) -> None:
        """Carry out the action; raises nothing."""


class Lane:
    """Plans, acts, plans again; sleeps until the board changes or something becomes due."""

    def __init__(self, board: Board, executor: Runs, policy: Policy, clock: Clock) -> None:
        self._board = board
        self._executor = executor
        self._policy = policy
        self._clock = clock
        self._changed = board.subscribe()

    async def keep(self) -> None:
        """Hold the pins that are there."""
        while True:
            action = (await self._next(lambda planned: planned.keep)).keep
            if action is not None:
                await self._executor.run(action)

    async def touch(self) -> None:
        """Hold the soft pins. Behind users' requests a touch takes longer than a lease lasts."""
        while True:
            action = (await self._next(lambda planned: planned.touch)).touch
            if action is not None:
                await self._executor.run(action)

    async def warm(self) -> None:
        """Bring what is missing; stop at once when it is no longer wanted."""
        while True:
            action = (await self._next(lambda planned: planned.warm)).warm
            if action is not None:
                await self._run_while_wanted(action)

    async def _next(self, choose: Callable[[Plan], object]) -> Plan:
        while True:
            now = self._clock.monotonic()
            planned = plan(self._board.snapshot, self._policy, now)
            if choose(planned) is not None:
                return planned
            await self._changed.wait(None if planned.wake_at == FOREVER else planned.wake_at - now)

    async def _run_while_wanted(self, action: WarmAction) -> None:
        begun = self._goal(action.id)
        work = asyncio.create_task(self._executor.run(action))
        try:
            while not work.done() and begun is not None and self._goal(action.id) == begun:
                change = asyncio.create_task(self._changed.wait())
                await asyncio.wait({work, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            if not work.done():
                work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    def _goal(self, record_id: str) -> tuple[str, OnIdle | None] | None:
        """Return what work on a placement is for; None if it has become pointless."""
        snapshot = self._board.snapshot
        record = snapshot.records.get(record_id)
        if record is None or not record.wanted or snapshot.engine.asleep:
            return None
        return (snapshot.boot, record.placement.release)
