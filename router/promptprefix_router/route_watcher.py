"""Follows the operator's route table by long polls, for as long as the picker runs."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import structlog
from pydantic import ValidationError

from promptprefix.wire import LONG_POLL_S, ROUTES_PATH, Revision, RouteTable

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


@dataclass(frozen=True)
class Backoff:
    """Waits between failed attempts, in seconds."""

    first_s: float = 0.5
    most_s: float = 15.0

    def delay(self, failures: int) -> float:
        """Return a wait for the given number of failures in a row, half of it random."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 16))
        return whole * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, hides nothing


def control_client(base_url: str, ca_file: Path) -> httpx.AsyncClient:
    """Return a client that trusts only ``ca_file``. Raises `OSError` if it can't be read."""
    return httpx.AsyncClient(
        base_url=base_url,
        verify=ssl.create_default_context(cafile=str(ca_file)),
        timeout=httpx.Timeout(10.0, read=LONG_POLL_S + 15.0),
        trust_env=False,
    )


class RouteWatcher:
    """Asks again and again; a failure changes nothing but the age of the table."""

    def __init__(
        self,
        connect: Connect,
        token_file: Path,
        sink: RouteSink,
        meter: SyncMeter,
        backoff: Backoff = Backoff(),
    ) -> None:
        self._connect = connect
        self._token_file = token_file
        self._sink = sink
        self._meter = meter
        self._backoff = backoff
        self._revision: Revision | None = None
        self._failures = 0
        self._old_leader_answers = 0
        self._log = structlog.get_logger("control")

    async def run(self) -> None:
        """Follow for ever; every failure opens a new connection with the CA as it is then."""
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        await self.ask(client)
                        self._succeeded()
            except RouteAnswerError as error:
                self._failed(error.result, str(error))
            except (httpx.HTTPError, OSError) as error:
                self._failed("unreachable", f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._backoff.delay(self._failures))

    async def ask(self, client: httpx.AsyncClient) -> None:
        """Ask once. Raises `RouteAnswerError`, `httpx.HTTPError` or `OSError`."""
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
        if status != httpx.codes.OK:
            raise self._refused(status)
        try:
            table = RouteTable.model_validate_json(body)
        except ValidationError as error:
            message = f"{error.error_count()} errors in the route table"
            raise RouteAnswerError("invalid", message) from error
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
