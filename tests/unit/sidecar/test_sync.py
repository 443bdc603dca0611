"""The conversation with the operator, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from promptprefix.redial import MAX_PAUSE_S
from promptprefix.wire import Revision, SyncRequest, SyncResponse
from promptprefix_sidecar import engine_change, sync
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError, StandbyError
from promptprefix_sidecar.snapshot import PluginStatus, PluginView
from promptprefix_sidecar.state import Address
from promptprefix_sidecar.sync import MAX_CONFLICTS, UNHEARD_S, SyncLoop

from .records import pin, placement, report, snapshot, warm

ANSWER = SyncResponse(revision=Revision(term=1, number=1), placements=(placement("a"),))


@dataclass
class Stand:
    """Answers questions without a revision at once and lets others wait, until a later one comes.

    One that ``holds`` lets them wait even then. While ``errors`` lasts, its errors are the answers;
    a pause takes no time.
    """

    hold_s: float = 86_400.0
    errors: list[ControlError] = field(default_factory=list)
    asked: list[SyncRequest] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    reconnects: int = 0
    holds: bool = False
    ended: int = 0
    late: SyncResponse | None = None
    now: float = 0.0
    wall: float = 1_796_000_000.0
    answer: SyncResponse = ANSWER

    def __post_init__(self) -> None:
        self.board = Board(snapshot(warm("a"), found=report(pin(warm("a")))))
        self.changed = asyncio.Condition()
        self.later = asyncio.Event()

    async def sync(self, request: SyncRequest) -> SyncResponse | None:
        async with self.changed:
            self.asked.append(request)
            self.changed.notify_all()
            self.later.set()
            self.later = later = asyncio.Event()
        if self.errors:
            raise self.errors.pop(0)
        if request.revision is None:
            return self.answer
        try:
            await later.wait()
            if self.holds:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return self.late

    async def reconnect(self) -> None:
        self.reconnects += 1

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def questions(self, count: int) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: len(self.asked) >= count)

    def flap(self, number: int) -> None:
        """Change something that cuts the long-poll short."""
        plugin = PluginView(PluginStatus.REFUSING, f"reason {number}")
        self.board.apply(lambda known: replace(known, plugin=plugin))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loop = SyncLoop(
            self,
            self.board,
            Address("10.0.0.7", 8000),
            Clock(monotonic=lambda: self.now, wall=lambda: self.wall),
            hold_s=self.hold_s,
            answered=lambda _: None,
            failed=self.failed.append,
            jitter=lambda: 1.0,
            sleep=self.sleep,
        )
        task = asyncio.create_task(loop.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_an_outage_of_leaders_is_logged_once_and_asked_about_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand = Stand(errors=[StandbyError() for _ in range(6)])
    async with stand.running():
        await stand.questions(8)
    log = capsys.readouterr().out
    assert log.count("no operator leads") == 1
    assert log.count("operator answers again") == 1
    assert stand.failed == ["standby"] * 6
    assert max(stand.pauses) == MAX_PAUSE_S


@pytest.mark.parametrize(("wall", "sent"), [(1_796_000_000.5, 1_796_000_000.5), (-1.0, 0.0)])
async def test_a_report_says_what_time_it_is(wall: float, sent: float) -> None:
    stand = Stand(wall=wall)
    async with stand.running():
        await stand.questions(1)
    assert stand.asked[0].sent == sent


async def test_an_operator_that_is_away_is_asked_ever_more_slowly() -> None:
    stand = Stand(errors=[ControlError("unreachable", "away") for _ in range(7)])
    async with stand.running():
        await stand.questions(9)
    assert stand.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_reports_that_cut_every_wait_short_still_get_an_answer_now_and_then() -> None:
    """Else an operator that is there would count as silent."""
    stand = Stand()
    async with stand.running():
        await stand.questions(2)
        stand.flap(1)
        await stand.questions(3)
        stand.now += UNHEARD_S
        stand.flap(2)
        await stand.questions(5)
    revisions = [request.revision for request in stand.asked]
    assert revisions == [None, ANSWER.revision, ANSWER.revision, None, ANSWER.revision]


async def test_a_new_state_is_told_without_closing_a_connection() -> None:
    stand = Stand()
    async with stand.running():
        await stand.questions(2)
        for number in range(4):
            stand.now += 1.0
            stand.flap(number)
            await stand.questions(3 + number)
        assert stand.ended == 0
    assert [request.asked for request in stand.asked] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert stand.ended == 1  # the last one, when the sidecar ends
    assert not stand.failed


async def test_an_operator_that_is_busy_gets_no_third_question_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = Stand(holds=True)
    async with stand.running():
        await stand.questions(2)
        stand.flap(1)
        await stand.questions(3)
        assert stand.ended == 0
        monkeypatch.setattr(sync, "GIVE_WAY_S", 0.01)
        stand.flap(2)
        await stand.questions(4)
        assert stand.ended == 1  # never are more than two open
        stand.flap(3)
        stand.later.set()
        await stand.questions(5)
        assert stand.ended == 2
    assert stand.asked[-1].state.engine.soft_reason == "reason 3"


async def test_a_late_answer_to_a_question_that_gave_way_counts_for_nothing() -> None:
    old = SyncResponse(revision=Revision(term=1, number=9), placements=())
    stand = Stand()
    async with stand.running():
        await stand.questions(2)
        stand.late = old
        stand.flap(1)
        await stand.questions(3)
        stand.late = None
        stand.flap(2)
        await stand.questions(4)
        assert stand.board.snapshot.records["a"].wanted
    assert stand.asked[-1].revision == ANSWER.revision


async def test_after_an_error_the_revision_is_named_however_long_it_takes() -> None:
    stand = Stand()
    async with stand.running():
        await stand.questions(2)
        stand.errors = [ControlError("timeout", "slow") for _ in range(2)]
        stand.now += UNHEARD_S
        stand.flap(1)
        await stand.questions(5)
    assert [request.revision for request in stand.asked[-2:]] == [ANSWER.revision] * 2


async def test_an_operator_that_is_silent_for_too_long_is_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand = Stand(hold_s=300.0)
    async with stand.running():
        await stand.questions(2)
        stand.errors = [ControlError("unreachable", "away") for _ in range(3)]
        stand.now += 299.0
        stand.flap(1)
        await stand.questions(3)
        assert not stand.board.snapshot.let_go
        stand.now += 1.0
        await stand.questions(7)
        assert not stand.board.snapshot.let_go  # it is back
    assert capsys.readouterr().out.count("operator silent for too long") == 1
    back = stand.asked[-2:]
    assert [request.revision for request in back] == [None, ANSWER.revision]
    assert [p.id for p in back[-1].state.placements] == ["a"]


async def test_a_leader_of_the_past_is_not_obeyed_unless_there_is_no_other() -> None:
    """A restarted engine asks without a revision, so it could not know that it is one."""
    stand = Stand(answer=ANSWER.model_copy(update={"revision": Revision(term=2, number=1)}))
    async with stand.running():
        await stand.questions(2)
        stand.answer = SyncResponse(revision=Revision(term=1, number=9), placements=())
        engine = replace(stand.board.snapshot.engine, boot="other")
        stand.board.apply(lambda known: engine_change.with_engine(known, engine))
        await stand.questions(2 + MAX_CONFLICTS)
        assert stand.board.snapshot.records["a"].wanted
        assert stand.failed[-1] == "http-409"
        await stand.questions(4 + MAX_CONFLICTS)
        assert not any(r.wanted for r in stand.board.snapshot.records.values())
    assert stand.reconnects == MAX_CONFLICTS
    assert stand.asked[-1].revision == Revision(term=1, number=9)
