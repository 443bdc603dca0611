"""Follows the operator's route table by long polls, for as long as the picker runs."""

from __future__ import annotations

from typing import Protocol

import httpx
import structlog
from pydantic import ValidationError

from promptprefix.wire import ROUTES_PATH, STANDBY_STATUS, Revision, RouteTable
from promptprefix_router.control.control_link import (
    AnswerError,
    ControlAccess,
    ControlLink,
    StandbyError,
)

MAX_TABLE_BYTES = 64 * 1024 * 1024
OLD_LEADER_LIMIT = 5
"""After so many answers of an "old leader" in a row the term is taken to have started anew."""


class RouteSink(Protocol):
    """Takes what the operator says."""

    def accept(self, table: RouteTable) -> None:
        """Take a new table."""

    def confirm(self) -> None:
        """Take note that there is no news."""


class SyncMeter(Protocol):
    """Counts exchanges with the operator."""

    def synced(self, result: str) -> None:
        """Count one; ``result`` is a fixed word."""


class RouteWatcher:
    """Asks again and again; a failure changes nothing but the age of the table.

    ``tenant`` is the namespace that is served: the operator expects to hear of its matches.
    """

    def __init__(
        self,
        access: ControlAccess,
        tenant: str,
        sink: RouteSink,
        meter: SyncMeter,
    ) -> None:
        self._access = access
        self._tenant = tenant
        self._sink = sink
        self._meter = meter
        self._revision: Revision | None = None
        self._old_leader_answers = 0
        self._link = ControlLink(
            access,
            meter.synced,
            structlog.get_logger("control"),
            away="operator is away, the last routes stay",
            back="operator is back",
        )

    async def run(self) -> None:
        """Follow for ever."""
        await self._link.run(self.ask)

    async def ask(self, client: httpx.AsyncClient) -> None:
        """Ask once. Raises `StandbyError`, `AnswerError`, `httpx.HTTPError` or `OSError`."""
        headers = self._access.headers
        params: dict[str, str | int] = {"tenant": self._tenant}
        if self._revision is not None:
            params |= {"term": self._revision.term, "number": self._revision.number}
        async with client.stream("GET", ROUTES_PATH, params=params, headers=headers) as response:
            status = response.status_code
            body = await _read(response)
        if status == httpx.codes.NO_CONTENT:
            self._sink.confirm()
            self._answered("unchanged")
            return
        if status == STANDBY_STATUS:
            raise StandbyError
        if status != httpx.codes.OK:
            raise self._refused(status)
        try:
            table = RouteTable.model_validate_json(body)
        except ValidationError as error:
            # The error quotes what was sent, cache salts too: it must not be chained into a log.
            message = f"{error.error_count()} errors in the route table"
            raise AnswerError("invalid", message) from None
        self._sink.accept(table)
        self._revision = table.revision
        self._answered("table")

    def _answered(self, result: str) -> None:
        self._meter.synced(result)
        self._old_leader_answers = 0
        self._link.answered()

    def _refused(self, status: int) -> AnswerError:
        if status != httpx.codes.CONFLICT:
            return AnswerError("refused", f"the operator answered {status}")
        self._old_leader_answers += 1
        if self._old_leader_answers >= OLD_LEADER_LIMIT:
            self._revision = None
        return AnswerError("old-leader", "an operator of an older term answered")


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_TABLE_BYTES:
            raise AnswerError("too-large", f"route table over {MAX_TABLE_BYTES} bytes")
    return bytes(body)
