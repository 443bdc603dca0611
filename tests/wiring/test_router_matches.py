"""Reports of matches on real TLS: what the operator hears, and what its failures do not do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.redial import OUTAGE
from promptprefix.wire import MATCHES_PATH, MatchAnswer, MatchReport
from promptprefix_router.control import match_reporter
from promptprefix_router.control.control_link import Backoff, ControlAccess, control_client
from promptprefix_router.control.match_reporter import (
    PRESENCE_INTERVAL_S,
    REPORT_INTERVAL_S,
    MatchReporter,
)
from promptprefix_router.control.match_tally import MatchTally

LEADER = 5


class Operator:
    """Answers reports with the leader's term, or as its script says."""

    def __init__(self) -> None:
        self.term = LEADER
        self.script: deque[int | str] = deque()
        self.reports: list[MatchReport] = []
        self.tokens: list[str] = []
        self.peers: list[int] = []
        self.url = ""

    async def matches(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peername")[1])
        report = MatchReport.model_validate_json(await request.read())
        self.tokens.append(request.headers["Authorization"])
        answer = self.script.popleft() if self.script else 200
        if isinstance(answer, str):
            return web.Response(text=answer)
        if answer != 200:
            response = web.Response(status=answer)
            response.force_close()
            return response
        self.reports.append(report)
        return web.Response(text=MatchAnswer(term=self.term).model_dump_json())


class Stand:
    """A reporter and its operator; time passes only in its sleeps."""

    def __init__(self, operator: Operator, authority: LoopbackAuthority, token: Path) -> None:
        self.operator = operator
        self.now = 0.0
        self.sleeps: list[float] = []
        self.results: list[str] = []
        ticks = count(1_000)
        self.tally = MatchTally(lambda: float(next(ticks)))
        self.tally.retain({"u-1", "u-2"})
        self.steps = asyncio.Queue[None]()
        self.done = asyncio.Queue[None]()
        self.task: asyncio.Task[None]
        self.reporter = MatchReporter(
            ControlAccess(
                lambda: control_client(operator.url, authority.ca_file),
                token,
                Backoff(first_s=1.0, most_s=1.0),
                self._sleep,
            ),
            "ml",
            self.tally,
            self,
            lambda: 5_000.0,
            lambda: self.now,
        )

    def reported(self, result: str) -> None:
        self.results.append(result)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        self.done.put_nowait(None)
        await self.steps.get()

    async def end(self) -> None:
        """Let the reporter report no more."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def passed(self, times: int = 1) -> None:
        """Return when the reporter has gone to sleep so many more times."""
        for _ in range(times):
            self.steps.put_nowait(None)
            await asyncio.wait_for(self.done.get(), 10)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    authority, operator, token = LoopbackAuthority(tmp_path / "ca"), Operator(), tmp_path / "token"
    token.write_text("first\n")
    app = web.Application()
    app.router.add_post(MATCHES_PATH, operator.matches)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.server_context()).start()
    operator.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    made = Stand(operator, authority, token)
    made.task = asyncio.create_task(made.reporter.run())
    await asyncio.wait_for(made.done.get(), 10)
    yield made
    await made.end()
    await runner.cleanup()


def told(report: MatchReport) -> dict[str, tuple[int, float]]:
    return {match.id: (match.count, match.at) for match in report.matches}


async def test_a_leader_is_told_everything_and_then_what_is_new(stand: Stand) -> None:
    first, second = stand.operator.reports
    assert (first.term, second.term, told(second)) == (0, LEADER, {})
    assert (second.tenant, second.sent) == ("ml", 5_000.0)
    stand.tally.note(("u-1",))
    stand.tally.note(("u-1",))
    await stand.passed(2)
    assert [told(each) for each in stand.operator.reports[2:]] == [{"u-1": (2, 1001.0)}]
    stand.operator.term = LEADER + 1
    stand.tally.note(("u-2",))
    await stand.passed()
    ask, answer = stand.operator.reports[3:]
    assert (ask.term, told(ask)) == (LEADER, {"u-2": (1, 1002.0)})
    assert answer.term == LEADER + 1
    assert told(answer) == {"u-1": (0, 1001.0), "u-2": (0, 1002.0)}
    assert set(stand.results) == {"taken"}
    assert len(set(stand.operator.peers)) == 1, "one connection"


async def test_without_matches_it_says_seldom_that_there_are_none(stand: Stand) -> None:
    seen = len(stand.operator.reports)
    await stand.passed(round(PRESENCE_INTERVAL_S / REPORT_INTERVAL_S))
    assert [told(each) for each in stand.operator.reports[seen:]] == [{}]
    assert set(stand.sleeps) == {REPORT_INTERVAL_S}


@pytest.mark.parametrize(
    ("answer", "result"), [(500, "refused"), (403, "refused"), (404, "refused"), ("{", "refused")]
)
async def test_what_a_failure_keeps_back_is_told_later(
    stand: Stand, answer: int | str, result: str
) -> None:
    stand.operator.script.extend([answer, answer])
    seen = len(stand.operator.reports)
    stand.tally.note(("u-1",))
    await stand.passed()
    stand.tally.note(("u-1",))
    await stand.passed(2)
    assert [told(each) for each in stand.operator.reports[seen:]] == [{"u-1": (2, 1001.0)}]
    assert stand.results[2:] == [result, result, "taken"]
    assert max(stand.sleeps) <= REPORT_INTERVAL_S


async def test_an_operator_that_is_away_is_waited_for(stand: Stand) -> None:
    url, stand.operator.url = stand.operator.url, "https://127.0.0.1:1"
    stand.operator.script.append(500)
    stand.tally.note(("u-1",))
    await stand.passed(2)
    assert stand.results[2:] == ["refused", "unreachable"]
    stand.operator.url = url
    await stand.passed()
    assert told(stand.operator.reports[-1]) == {"u-1": (1, 1000.0)}


async def test_standbys_are_left_at_once_and_reported_only_if_nobody_leads(
    stand: Stand, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("second")
    stand.operator.script.extend([421] * OUTAGE)
    stand.tally.note(("u-1",))
    await stand.passed(OUTAGE)
    assert stand.results[2:] == ["standby"]
    await stand.passed()
    assert stand.results[2:] == ["standby", "taken"]
    assert len(set(stand.operator.peers[2:])) == OUTAGE + 1, "each redial is a new connection"
    assert stand.operator.tokens[-1] == "Bearer second"


async def test_more_than_one_report_holds_is_told_at_once_in_parts(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_reporter, "MAX_MATCHES", 2)
    ids = [f"u-{number}" for number in range(5)]
    stand.tally.retain(ids)
    stand.tally.note(ids)
    seen = len(stand.operator.reports)
    stand.operator.term = LEADER + 1
    await stand.passed()
    parts = stand.operator.reports[seen:]
    whole = [each for each in parts if each.term == LEADER + 1]
    assert len(whole) == 1
    assert whole[0] is parts[-1]
    assert {id_ for each in parts for id_ in told(each)} == set(ids)
    assert all(len(each.matches) <= 2 for each in parts)


async def test_a_router_that_ends_tells_what_is_untold_and_that_it_ends(stand: Stand) -> None:
    await stand.end()
    seen = len(stand.operator.reports)
    stand.tally.note({"u-2"})
    stand.operator.script.extend([421, 200])
    stand.steps.put_nowait(None)
    await stand.reporter.farewell()
    [last] = stand.operator.reports[seen:]
    assert (last.leaving, last.term, set(told(last))) == (True, LEADER, {"u-2"})


async def test_a_leader_that_is_new_hears_everything_before_the_end(stand: Stand) -> None:
    stand.tally.note({"u-1"})
    await stand.passed()
    await stand.end()
    seen = len(stand.operator.reports)
    stand.operator.term = LEADER + 1
    await stand.reporter.farewell()
    first, last = stand.operator.reports[seen:]
    assert (first.leaving, first.term, told(first)) == (True, LEADER, {})
    assert (last.leaving, last.term, set(told(last))) == (True, LEADER + 1, {"u-1"})


async def test_an_operator_that_is_away_does_not_hold_up_the_end(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.end()
    monkeypatch.setattr(match_reporter, "FAREWELL_S", 0.05)
    stand.operator.script.extend([500])
    await stand.reporter.farewell()
    stand.operator.script.extend([421] * 1_000)
    await stand.reporter.farewell()
