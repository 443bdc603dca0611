"""Asks ready engines for the tokens of prompts: each as the engine itself will compute it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from promptprefix_router.control.routes import Endpoint
from promptprefix_router.http_connection import Answer, UnreachableError
from promptprefix_router.precise.engine_client import EngineClient
from promptprefix_router.precise.token_request import (
    PATH,
    Fallback,
    FallbackError,
    TokenRequest,
    read_tokens,
)

MOST_WAITING = 64
"""Requests that wait for their tokens at a time."""

MOST_ANSWER_BYTES = 8 * 1_048_576
"""Longest answer of an engine: some million tokens."""

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
"""Engines that failed to answer are not asked for so long, the longer the more often they failed:
no request shall wait in vain for an engine that is too busy."""

LONG_BYTES = 65_536
"""A longer prompt may take an engine a while: that it is late says nothing of the next one."""

MOST_LATE = 4
"""So many in a row say that the engine is too busy, and that asking makes it worse: it goes on with
a prompt when nobody waits for it any more."""

_OK = 200
_REFUSED = (400, 413, 422)

Post = Callable[[str, int, str, str, bytes], Awaitable[Answer]]


@dataclass(slots=True)
class _Failures:
    """Those in a row of one engine."""

    count: int = 0
    late: int = 0
    """Long prompts among what it failed to answer in time."""
    until: float = 0.0


class TokenReader:
    """Asks one engine, once, in ``timeout_s`` seconds. Engines take turns.

    ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        timeout_s: float,
        client: EngineClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        post: Post | None = None,
    ) -> None:
        self._client = client or EngineClient(MOST_ANSWER_BYTES)
        self._post = post or self._client.post
        self._timeout_s = timeout_s
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self._waiting = 0
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for their tokens now."""
        return self._waiting

    def retain(self, addresses: frozenset[str]) -> None:
        """Forget all other engines."""
        self._client.retain(addresses)
        self._failures = {key: self._failures[key] for key in self._failures.keys() & addresses}

    async def read(self, request: TokenRequest, engines: Sequence[Endpoint]) -> Sequence[int]:
        """Return the token ids by one of ``engines``, all of one model; raise `FallbackError`."""
        if request.tokens is not None:
            return request.tokens
        if self._waiting >= MOST_WAITING:
            raise FallbackError(Fallback.BUSY)
        engine = self._next(engines)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._post(
                    engine.host, engine.port, engine.address, PATH, request.body
                )
        except TimeoutError:
            long = len(request.body) > LONG_BYTES
            self._failed(engine.address, late=int(long))
            raise FallbackError(Fallback.LONG if long else Fallback.TIMEOUT) from None
        except UnreachableError:
            self._failed(engine.address)
            raise FallbackError(Fallback.UNREACHABLE) from None
        finally:
            self._waiting -= 1
        self._failures.pop(engine.address, None)
        if status != _OK:
            raise FallbackError(Fallback.REFUSED if status in _REFUSED else Fallback.INVALID)
        return read_tokens(answer)

    def _next(self, engines: Sequence[Endpoint]) -> Endpoint:
        """Return the engine whose turn it is, of those that are not paused."""
        now = self._clock()
        self._turn += 1
        for place in range(len(engines)):
            engine = engines[(self._turn + place) % len(engines)]
            failures = self._failures.get(engine.address)
            if failures is None or failures.until <= now:
                return engine
        raise FallbackError(Fallback.PAUSED)

    def _failed(self, address: str, late: int = 0) -> None:
        failures = self._failures.setdefault(address, _Failures())
        failures.late += late
        if late and failures.late < MOST_LATE:
            return
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures.count, 16))
        failures.count += 1
        failures.until = self._clock() + pause_s
