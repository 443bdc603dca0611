"""Follows the operator's route table by long polls, for as long as the picker runs."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import structlog
from pydantic import ValidationError

from promptprefix.redial import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    MAX_BACKOFF_S,
    nobody_leads,
    redial_pause,
)
from promptprefix.wire import ROUTES_PATH, STANDBY_STATUS, Revision, RouteTable

MAX_TABLE_BYTES = 64 * 1024 * 1024
OLD_LEADER_LIMIT = 5
"""After so many answers of an "old leader" in a row the term is taken to have started anew."""

Connect = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


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


class RouteAnswerError(ValueError):
    """The operator's answer is no route table; ``result`` is a word for counters."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = result


class StandbyError(Exception):
    """An operator answered that does not lead; a new connection may reach the one that does."""


@dataclass(frozen=True)
class Backoff:
    """Waits between failed attempts, in seconds."""

    first_s: float = 0.5
    most_s: float = MAX_BACKOFF_S

    def delay(self, failures: int) -> float:
        """Return a wait for the given number of failures in a row, half of it random."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 16))
        return whole * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, hides nothing


def control_client(base_url: str, ca_file: Path) -> httpx.AsyncClient:
    """Return a client that trusts only ``ca_file``. Raises `OSError` if it can't be read."""
    return httpx.AsyncClient(
        base_url=base_url,
        verify=ssl.create_default_context(cafile=str(ca_file)),
        timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=ANSWER_TIMEOUT_S),
        trust_env=False,
    )


class RouteWatcher:
    """Asks again and again; a failure changes nothing but the age of the table.

    A standby's answer leads to a new connection, and counts as a failure only if nobody leads.
    """

    def __init__(
        self,
        connect: Connect,
        token_file: Path,
        sink: RouteSink,
        meter: SyncMeter,
        backoff: Backoff = Backoff(),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connect = connect
        self._token_file = token_file
        self._sink = sink
        self._meter = meter
        self._backoff = backoff
        self._sleep = sleep
        self._revision: Revision | None = None
        self._failures = 0
        self._old_leader_answers = 0
        self._standbys = 0
        self._log = structlog.get_logger("control")

    async def run(self) -> None:
        """Follow for ever; every failure opens a new connection with the CA as it is then."""
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        await self.ask(client)
                        self._succeeded()
            except StandbyError:
                await self._sleep(self._before_redial())
                continue
            except RouteAnswerError as error:
                self._failed(error.result, str(error))
            except (httpx.HTTPError, OSError) as error:
                self._failed("unreachable", f"{type(error).__name__}: {error}")
            self._standbys = 0
            await self._sleep(self._backoff.delay(self._failures))

    async def ask(self, client: httpx.AsyncClient) -> None:
        """Ask once. Raises `StandbyError`, `RouteAnswerError`, `httpx.HTTPError` or `OSError`."""
        headers = {"authorization": f"Bearer {self._token_file.read_text().strip()}"}
        params = (
            {"term": self._revision.term, "number": self._revision.number}
            if self._revision is not None
            else {}
        )
        async with client.stream("GET", ROUTES_PATH, params=params, headers=headers) as response:
            status = response.status_code
            body = await _read(response)
        if status == httpx.codes.NO_CONTENT:
            self._sink.confirm()
            self._meter.synced("unchanged")
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
            raise RouteAnswerError("invalid", message) from None
        self._sink.accept(table)
        self._revision = table.revision
        self._meter.synced("table")

    def _refused(self, status: int) -> RouteAnswerError:
        if status != httpx.codes.CONFLICT:
            return RouteAnswerError("refused", f"the operator answered {status}")
        self._old_leader_answers += 1
        if self._old_leader_answers >= OLD_LEADER_LIMIT:
            self._revision = None
        return RouteAnswerError("old-leader", "an operator of an older term answered")

    def _succeeded(self) -> None:
        if self._failures:
            self._log.info("operator is back", failures=self._failures)
        self._failures = 0
        self._old_leader_answers = 0
        self._standbys = 0

    def _before_redial(self) -> float:
        """Return the seconds to wait before the next connection."""
        self._standbys += 1
        if nobody_leads(self._standbys):
            self._failed("standby", "no operator leads: all that answer are standbys")
        jitter = random.random()  # noqa: S311 - spreads load, hides nothing
        return redial_pause(self._standbys, jitter)

    def _failed(self, result: str, message: str) -> None:
        self._failures += 1
        self._meter.synced(result)
        if self._failures == 1:
            self._log.warning("operator is away, the last routes stay", cause=message)


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_TABLE_BYTES:
            raise RouteAnswerError("too-large", f"route table over {MAX_TABLE_BYTES} bytes")
    return bytes(body)
