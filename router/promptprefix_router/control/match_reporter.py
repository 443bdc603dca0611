"""Tells the operator which versions requests match: it lets go of what nobody asks for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

import httpx
import structlog
from pydantic import ValidationError

from promptprefix.wire import (
    MATCHES_PATH,
    MAX_MATCHES,
    STANDBY_STATUS,
    MatchAnswer,
    MatchReport,
)
from promptprefix_router.control.control_link import (
    AnswerError,
    ControlAccess,
    ControlLink,
    StandbyError,
)
from promptprefix_router.control.match_tally import MatchTally

REPORT_INTERVAL_S = 2.0
"""Matches wait at most this long for the next report."""
PRESENCE_INTERVAL_S = 20.0
"""Without matches the operator hears this often that there are none."""
FAREWELL_S = 2.0
"""A router that ends has this long to say so."""
REDIAL_S = 0.1
"""After a standby's answer, while there is little time."""


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
        access: ControlAccess,
        tenant: str,
        tally: MatchTally,
        meter: ReportMeter,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._access = access
        self._tenant = tenant
        self._tally = tally
        self._meter = meter
        self._wall = wall
        self._clock = clock
        self._term = 0
        self._reported_at = -math.inf
        self._log = structlog.get_logger("matches")
        self._link = ControlLink(
            access,
            meter.reported,
            self._log,
            away="matches are not reported, they are counted on",
            back="operator takes matches again",
        )

    async def run(self) -> None:
        """Report for ever."""
        await self._link.run(self._report_and_wait)

    async def farewell(self, *, leaving: bool = True) -> None:
        """Tell what is untold, and that this router ends; the operator would wait for it for long.

        One of several processes of a router that is not ``leaving`` only tells what is untold.
        Nothing else may report meanwhile. Takes at most `FAREWELL_S`; a failure is only logged.
        """
        try:
            async with asyncio.timeout(FAREWELL_S):
                while not await self._farewell(leaving):
                    await self._access.sleep(REDIAL_S)
        except (AnswerError, httpx.HTTPError, OSError) as error:
            self._log.info("operator not told of the end", cause=type(error).__name__)

    async def _farewell(self, leaving: bool) -> bool:
        """Return whether the leader knows; a standby may have answered."""
        async with self._access.connect() as client:
            try:
                while await self._tell(client, leaving=leaving):
                    pass
            except StandbyError:
                return False
        return True

    async def _report_and_wait(self, client: httpx.AsyncClient) -> None:
        if not await self.report(client):
            await self._access.sleep(REPORT_INTERVAL_S)

    async def report(self, client: httpx.AsyncClient) -> bool:
        """Report once, if it is time; return whether there is more to tell at once.

        Raises `StandbyError`, `AnswerError`, `httpx.HTTPError` or `OSError`.
        """
        idle = self._clock() - self._reported_at < PRESENCE_INTERVAL_S
        if idle and not self._tally.untold(1):
            return False
        return await self._tell(client)

    async def _tell(self, client: httpx.AsyncClient, *, leaving: bool = False) -> bool:
        matches = self._tally.untold(MAX_MATCHES)
        whole = len(matches) < MAX_MATCHES
        report = MatchReport(
            tenant=self._tenant,
            sent=self._wall(),
            term=self._term if whole else 0,
            leaving=leaving and whole,
            matches=matches,
        )
        answer = await self._post(client, report)
        self._tally.tell(matches)
        self._reported_at = self._clock()
        self._meter.reported("taken")
        self._link.answered()
        if answer.term != self._term:
            self._term = answer.term
            self._tally.repeat()
            self._reported_at = -math.inf
            return True
        return not whole

    async def _post(self, client: httpx.AsyncClient, report: MatchReport) -> MatchAnswer:
        headers = self._access.headers | {"content-type": "application/json"}
        response = await client.post(
            MATCHES_PATH, content=report.model_dump_json(), headers=headers
        )
        if response.status_code == STANDBY_STATUS:
            raise StandbyError
        if response.status_code != httpx.codes.OK:
            raise AnswerError("refused", f"the operator answered {response.status_code}")
        try:
            return MatchAnswer.model_validate_json(response.content)
        except ValidationError as error:
            raise AnswerError("refused", str(error)) from error
