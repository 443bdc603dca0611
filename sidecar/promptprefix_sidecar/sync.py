"""The conversation with the operator: reports state, takes over the desired set."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import structlog

from promptprefix.redial import MAX_BACKOFF_S, MAX_PAUSE_S
from promptprefix.wire import (
    LONG_POLL_S,
    SYNC_PATH,
    Revision,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError, ControlStatusError, StandbyError
from promptprefix_sidecar.desired import with_desired
from promptprefix_sidecar.holding import let_go
from promptprefix_sidecar.snapshot import Snapshot
from promptprefix_sidecar.state import Address, sidecar_state, urgent_part

log = structlog.get_logger()

COALESCE_S = 0.1
"""A burst of changes is reported once."""

GIVE_WAY_S = 3.0
"""The operator has this long to answer a question whose place a later one has taken.

Until then no third one is asked: an operator, or a pod, without time gets no more work than it can
do. After that the connection is closed, as an operator that is older holds the question.
"""

FIRST_BACKOFF_S = 0.5
CONFLICT = 409
UNHEARD_S = 2 * LONG_POLL_S
"""Changes of state may cut every long-poll short; after so long one answer is asked for at once."""

MAX_CONFLICTS = 6
"""Answers of an old leader in a row, a quarter of a minute: longer than a lease outlives it."""


class ControlApi(Protocol):
    """What the conversation needs of the control API; every method raises `ControlError`."""

    async def sync(self, request: SyncRequest) -> SyncResponse | None:
        """Report, and wait for another desired set."""

    async def reconnect(self) -> None:
        """Let the next request reach another operator."""


class SyncLoop:
    """One long-poll is always open; a change of state that matters is told by a new one.

    That takes the place of the one before, which the operator answers then. Its connection serves
    again: a handshake for each change would cost both sides more than all else.

    An error changes nothing of what is wanted: it is held until the operator says otherwise, or
    has been silent for ``hold_s`` seconds (0: for ever).
    """

    def __init__(
        self,
        control: ControlApi,
        board: Board,
        address: Address,
        clock: Clock,
        *,
        hold_s: float,
        answered: Callable[[str], None],
        failed: Callable[[str], None],
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._control = control
        self._board = board
        self._address = address
        self._clock = clock
        self._hold_s = hold_s
        self._answered = answered
        self._failed = failed
        self._jitter = jitter
        self._sleep = sleep
        self._changed = board.subscribe()
        self._former: asyncio.Task[SyncResponse | None] | None = None
        self._revision: Revision | None = None
        self._answered_boot = ""
        self._failures = 0
        self._conflicts = 0
        self._leaderless = False
        self._heard_at = clock.monotonic()

    async def run(self) -> None:
        """Talk until cancelled."""
        try:
            await self._talk()
        finally:
            await self._forget_former()

    async def _talk(self) -> None:
        while True:
            snapshot = self._board.snapshot
            state = sidecar_state(snapshot, self._address)
            # The first word of a healthy engine asks without a revision, which is answered at once.
            healthy_boot = snapshot.boot if snapshot.engine.healthy else ""
            known = healthy_boot in ("", self._answered_boot)
            may_wait = known and not self._unheard
            request = SyncRequest(
                revision=self._revision if may_wait else None,
                state=state,
                sent=max(0.0, self._clock.wall()),
                asked=max(0.0, self._clock.monotonic()),
            )
            try:
                done = await self._exchange(request)
            except ControlError as error:
                await self._recover(error)
                continue
            if done and not known:
                self._answered_boot = healthy_boot
                self._answered(healthy_boot)

    @property
    def _unheard(self) -> bool:
        """Whether the operator seems to be there and has had no chance to say so for long.

        After an error the revision is named: it tells a leader of the past that it is one.
        """
        return not self._failures and self._silent_s >= UNHEARD_S

    @property
    def _silent_s(self) -> float:
        return self._clock.monotonic() - self._heard_at

    async def _exchange(self, request: SyncRequest) -> bool:
        """Report and wait; return False if a change of state took the place of this question."""
        poll = asyncio.create_task(self._control.sync(request))
        cut = asyncio.create_task(self._until_urgent(request.state))
        given_way = False
        try:
            await asyncio.wait({poll, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                given_way = await self._give_way(poll)
        finally:
            for task in (poll, cut):
                if not (task.done() or (task is poll and given_way)):
                    task.cancel()
            await asyncio.wait({cut} if given_way else {poll, cut})
        if not cut.cancelled():
            cut.result()
        if given_way:
            return False
        answer = poll.result()
        if answer is not None and self._is_older(answer.revision):
            raise ControlStatusError(CONFLICT, SYNC_PATH)
        self._heard()
        news = answer is not None and answer.revision != self._revision
        if answer is not None:
            self._take_over(answer)
        if not news:  # an operator that repeats itself must not make us spin
            await asyncio.sleep(COALESCE_S)
        return True

    async def _give_way(self, poll: asyncio.Task[SyncResponse | None]) -> bool:
        """Leave a question open for the next one; return False if it is answered first."""
        if self._former is not None:
            both = {self._former, poll}
            await asyncio.wait(both, timeout=GIVE_WAY_S, return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                await self._forget_former()
        if poll.done():
            return False
        self._former = poll
        return True

    async def _forget_former(self) -> None:
        """End the question whose place another one has taken; its answer is out of date."""
        former, self._former = self._former, None
        if former is not None:
            former.cancel()
            await asyncio.gather(former, return_exceptions=True)

    def _is_older(self, revision: Revision) -> bool:
        """Whether a leader of the past answered, who could not know: it was told no revision."""
        return self._revision is not None and revision.term < self._revision.term

    def _take_over(self, answer: SyncResponse) -> None:
        if answer.revision != self._revision:
            log.info("desired set", placements=len(answer.placements), term=answer.revision.term)
        self._revision = answer.revision

        def edit(snapshot: Snapshot) -> Snapshot:
            told = with_desired(snapshot, answer.placements)
            if not answer.blocks_key:
                return told
            return replace(told, blocks_key=answer.blocks_key, pod_uid=answer.pod_uid)

        self._board.apply(edit)

    async def _until_urgent(self, sent: SidecarState) -> None:
        reported = urgent_part(sent)
        while urgent_part(sidecar_state(self._board.snapshot, self._address)) == reported:
            await self._changed.wait()
        await asyncio.sleep(COALESCE_S)

    def _heard(self) -> None:
        if self._failures:
            log.info("operator answers again", failures=self._failures)
        self._failures = self._conflicts = 0
        self._leaderless = False
        self._heard_at = self._clock.monotonic()

    async def _recover(self, error: ControlError) -> None:
        self._failures += 1
        self._failed(error.kind)
        standby = isinstance(error, StandbyError)
        delay = min(
            MAX_PAUSE_S if standby else MAX_BACKOFF_S,
            FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10),
        )
        delay *= 0.5 + self._jitter() / 2
        if not (standby and self._leaderless):
            log.warning("sync failed", error=str(error), retry_in_s=round(delay, 2))
        self._leaderless = standby
        if isinstance(error, ControlStatusError) and error.status == CONFLICT:
            # An operator that leads no more answered: a new connection may reach the leader. If
            # they all say so, the count of terms began anew, and the next answer decides.
            self._conflicts += 1
            if self._conflicts >= MAX_CONFLICTS:
                self._revision = None
            await self._control.reconnect()
        self._let_go()
        await self._sleep(delay)

    def _let_go(self) -> None:
        before = self._board.snapshot.let_go
        silent_s = self._silent_s
        self._board.apply(lambda snapshot: let_go(snapshot, silent_s, self._hold_s))
        if self._board.snapshot.let_go and not before:
            self._revision = None  # the set that it names is no longer ours
            log.warning("operator silent for too long: all pins are given up")
