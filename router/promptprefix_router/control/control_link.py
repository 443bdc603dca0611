"""Keeps a connection to the operator that leads, for as long as the picker runs."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from promptprefix.redial import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    MAX_BACKOFF_S,
    nobody_leads,
    redial_pause,
)

Connect = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


class AnswerError(ValueError):
    """The operator's answer is of no use; ``result`` is a word for counters."""

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


BACKOFF = Backoff()


def control_client(base_url: str, ca_file: Path) -> httpx.AsyncClient:
    """Return a client that trusts only ``ca_file``. Raises `OSError` if it can't be read."""
    return httpx.AsyncClient(
        base_url=base_url,
        verify=ssl.create_default_context(cafile=str(ca_file)),
        timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=ANSWER_TIMEOUT_S),
        trust_env=False,
    )


@dataclass(frozen=True)
class ControlAccess:
    """How the operator is reached, and how attempts are spaced."""

    connect: Connect
    token_file: Path
    backoff: Backoff = BACKOFF
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the token as it is now. Raises `OSError` or `AnswerError`."""
        try:
            token = self.token_file.read_text("ascii").strip()
        except UnicodeDecodeError:
            raise AnswerError("refused", f"{self.token_file} holds no token") from None
        return {"authorization": f"Bearer {token}"}


class ControlLink:
    """Repeats an exchange on one connection; after a failure, on a new one.

    A standby's answer leads to a new connection at once, and counts as a failure only if nobody
    leads. ``failed`` gets a fixed word for each failure; of failures in a row the first is logged
    as ``away``, and the next answer as ``back``.
    """

    def __init__(
        self,
        access: ControlAccess,
        failed: Callable[[str], None],
        log: Any,
        *,
        away: str,
        back: str,
    ) -> None:
        self._connect = access.connect
        self._count_failure = failed
        self._log = log
        self._away = away
        self._back = back
        self._backoff = access.backoff
        self._sleep = access.sleep
        self._failures = 0
        self._standbys = 0

    async def run(self, exchange: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
        """Exchange for ever; every failure opens a new connection with the CA as it is then.

        ``exchange`` calls `answered`, or raises `StandbyError`, `AnswerError`, `httpx.HTTPError` or
        `OSError`.
        """
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        await exchange(client)
            except StandbyError:
                await self._sleep(self._before_redial())
                continue
            except AnswerError as error:
                self._failed(error.result, str(error))
            except (httpx.HTTPError, OSError) as error:
                self._failed("unreachable", f"{type(error).__name__}: {error}")
            self._standbys = 0
            await self._sleep(self._backoff.delay(self._failures))

    def answered(self) -> None:
        """Take note that the leader gave an answer of use."""
        if self._failures:
            self._log.info(self._back, failures=self._failures)
        self._failures = 0
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
        self._count_failure(result)
        if self._failures == 1:
            self._log.warning(self._away, cause=message)
