"""Tells the operator which versions requests match: it lets go of what nobody asks for."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import httpx
import structlog

from promptprefix.redial import nobody_leads, redial_pause
from promptprefix.wire import (
    MATCHES_PATH,
    MAX_MATCHES,
    STANDBY_STATUS,
    MatchAnswer,
    MatchReport,
)
from promptprefix_router.match_tally import MatchTally
from promptprefix_router.route_watcher import Backoff, Connect, StandbyError

REPORT_INTERVAL_S = 2.0
"""Matches wait at most this long for the next report."""
PRESENCE_INTERVAL_S = 20.0
"""Without matches the operator hears this often that there are none."""
BACKOFF = Backoff()


class ReportMeter(Protocol):
    """Counts reports."""

    def reported(self, result: str) -> None:
        """Count one; ``result`` is a fixed word."""


class MatchReporter:
    """Reports for ever; no failure reaches the picker.

    A leader of a new term knows nothing of what its predecessor was told, and is told everything.
    ``wall`` is Unix seconds, ``clock`` monotonic ones.
    """

    def __init__(
        self,
        connect: Connect,
        token_file: Path,
        tenant: str,
        tally: MatchTally,
        meter: ReportMeter,
        wall: Callable[[], float],
        clock: Callable[[], float],
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connect = connect
        self._token_file = token_file
        self._tenant = tenant
        self._tally = tally
        self._meter = meter
        self._wall = wall
        self._clock = clock
        self._backoff = backoff
        self._sleep = sleep
        self._term = 0
        self._reported_at = -math.inf
        self._failures = 0
        self._standbys = 0
        self._log = structlog.get_logger("matches")

    async def run(self) -> None:
        """Report for ever; every failure opens a new connection with the CA as it is then."""
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        if not await self.report(client):
                            await self._sleep(REPORT_INTERVAL_S)
            except StandbyError:
                await self._sleep(self._before_redial())
                continue
            except (httpx.HTTPError, OSError) as error:
                self._failed("unreachable", f"{type(error).__name__}: {error}")
            except ValueError as error:
                self._failed("refused", str(error))
            self._standbys = 0
            await self._sleep(self._backoff.delay(self._failures))

    async def report(self, client: httpx.AsyncClient) -> bool:
        """Report once, if it is time; return whether there is more to tell at once.

        Raises `StandbyError`, `httpx.HTTPError`, `OSError` or `ValueError`.
        """
        matches = self._tally.untold(MAX_MATCHES)
        if not matches and self._clock() - self._reported_at < PRESENCE_INTERVAL_S:
            return False
        whole = len(matches) < MAX_MATCHES
        report = MatchReport(
            tenant=self._tenant,
            sent=self._wall(),
            term=self._term if whole else 0,
            matches=matches,
        )
        answer = await self._post(client, report)
        self._tally.tell(matches)
        self._reported_at = self._clock()
        self._succeeded()
        if answer.term != self._term:
            self._term = answer.term
            self._tally.repeat()
            self._reported_at = -math.inf
            return True
        return not whole

    async def _post(self, client: httpx.AsyncClient, report: MatchReport) -> MatchAnswer:
        headers = {
            "authorization": f"Bearer {self._token_file.read_text().strip()}",
            "content-type": "application/json",
        }
        response = await client.post(
            MATCHES_PATH, content=report.model_dump_json(), headers=headers
        )
        if response.status_code == STANDBY_STATUS:
            raise StandbyError
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"the operator answered {response.status_code}")
        return MatchAnswer.model_validate_json(response.content)

    def _succeeded(self) -> None:
        if self._failures:
            self._log.info("operator takes matches again", failures=self._failures)
        self._failures = 0
        self._standbys = 0
        self._meter.reported("taken")

    def _before_redial(self) -> float:
        """Return the seconds to wait before the next connection."""
        self._standbys += 1
        if nobody_leads(self._standbys):
            self._failed("standby", "no operator leads: all that answer are standbys")
        jitter = random.random()  # noqa: S311 - spreads load, hides nothing
        return redial_pause(self._standbys, jitter)

    def _failed(self, result: str, message: str) -> None:
        self._failures += 1
        self._meter.reported(result)
        if self._failures == 1:
            self._log.warning("matches are not reported, they are counted on", cause=message)
