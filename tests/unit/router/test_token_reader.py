"""Who is asked for tokens, how long, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from promptprefix_router.control.routes import Endpoint
from promptprefix_router.http_connection import Answer, UnreachableError
from promptprefix_router.precise import token_reader
from promptprefix_router.precise.token_reader import (
    FIRST_PAUSE_S,
    LONG_BYTES,
    MOST_LATE,
    TokenReader,
)
from promptprefix_router.precise.token_request import Fallback, FallbackError, TokenRequest

from .samples import endpoint, routes

ENGINES = routes(endpoint(1), endpoint(2), endpoint(3)).endpoints
REQUEST = TokenRequest(b"{}")
TOKENS = Answer(200, b'{"tokens":[1,2]}')
Say = Callable[[str], Answer]


class Stand:
    """A reader whose engines answer as told, and its clock."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.say: Say = lambda _: TOKENS
        self.hold = asyncio.Event()
        self.hold.set()
        self.reader = TokenReader(timeout_s, clock=lambda: self.now, post=self._post)

    async def _post(self, host: str, port: int, address: str, path: str, body: bytes) -> Answer:
        assert (f"{host}:{port}", path) == (address, "/tokenize")
        self.asked.append(host)
        await self.hold.wait()
        return self.say(host)

    async def read(
        self, request: TokenRequest = REQUEST, engines: Sequence[Endpoint] = ENGINES
    ) -> object:
        """Return the tokens, or why there are none."""
        try:
            return list(await self.reader.read(request, engines))
        except FallbackError as error:
            return error.reason


def unreachable(_host: str) -> Answer:
    """Fail as an engine does that is away."""
    raise UnreachableError("closed")


async def test_engines_take_turns() -> None:
    stand = Stand()
    assert [await stand.read() for _ in range(6)] == [[1, 2]] * 6
    assert sorted(stand.asked) == sorted(["10.0.0.1", "10.0.0.2", "10.0.0.3"] * 2)


async def test_tokens_that_are_there_are_not_asked_for() -> None:
    stand = Stand()
    assert await stand.read(TokenRequest(tokens=[7])) == [7]
    assert stand.asked == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(400, b""), Fallback.REFUSED),
        (Answer(422, b""), Fallback.REFUSED),
        (Answer(404, b""), Fallback.INVALID),
        (Answer(500, b""), Fallback.INVALID),
        (Answer(200, b"{}"), Fallback.INVALID),
    ],
)
async def test_another_answer_is_no_list_of_tokens(answer: Answer, reason: Fallback) -> None:
    stand = Stand()
    stand.say = lambda _: answer
    assert await stand.read() is reason
    assert len(stand.asked) == 1


async def test_an_engine_that_is_away_is_left_alone_for_a_while() -> None:
    stand = Stand()
    one = ENGINES[:1]
    stand.say = unreachable
    assert await stand.read(engines=one) is Fallback.UNREACHABLE
    assert await stand.read(engines=one) is Fallback.PAUSED
    stand.now = FIRST_PAUSE_S
    assert await stand.read(engines=one) is Fallback.UNREACHABLE
    stand.now += FIRST_PAUSE_S
    assert await stand.read(engines=one) is Fallback.PAUSED
    stand.now += FIRST_PAUSE_S
    stand.say = lambda _: TOKENS
    assert await stand.read(engines=one) == [1, 2]
    assert await stand.read(engines=one) == [1, 2]


async def test_the_others_are_asked_meanwhile() -> None:
    stand = Stand()
    stand.say = lambda host: unreachable(host) if host == "10.0.0.2" else TOKENS
    results = [await stand.read() for _ in range(9)]
    assert results.count(Fallback.UNREACHABLE) == 1
    assert results.count([1, 2]) == 8


async def test_nobody_waits_longer_than_the_limit() -> None:
    stand = Stand(timeout_s=0.01)
    stand.hold.clear()
    assert await stand.read(engines=ENGINES[:1]) is Fallback.TIMEOUT
    assert await stand.read(engines=ENGINES[:1]) is Fallback.PAUSED
    assert stand.reader.waiting == 0


async def test_a_long_prompt_that_is_late_says_nothing_of_the_engine() -> None:
    stand = Stand(timeout_s=0.01)
    stand.hold.clear()
    assert await stand.read(TokenRequest(b"x" * (LONG_BYTES + 1)), ENGINES[:1]) is Fallback.LONG
    stand.hold.set()
    assert await stand.read(engines=ENGINES[:1]) == [1, 2]


async def test_an_engine_that_is_late_with_each_long_prompt_is_spared() -> None:
    """Who has no key of the engine's could else make it tokenize without end."""
    stand = Stand(timeout_s=0.001)
    long = TokenRequest(b"x" * (LONG_BYTES + 1))
    stand.hold.clear()
    late = [await stand.read(long, ENGINES[:1]) for _ in range(MOST_LATE + 2)]
    assert late == [Fallback.LONG] * MOST_LATE + [Fallback.PAUSED] * 2
    stand.now += FIRST_PAUSE_S
    assert await stand.read(long, ENGINES[:1]) is Fallback.LONG
    assert await stand.read(long, ENGINES[:1]) is Fallback.PAUSED
    stand.now += 2 * FIRST_PAUSE_S
    stand.hold.set()
    assert await stand.read(engines=ENGINES[:1]) == [1, 2]
    stand.hold.clear()
    assert [await stand.read(long, ENGINES[:1]) for _ in range(2)] == [Fallback.LONG] * 2


async def test_only_so_many_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_reader, "MOST_WAITING", 2)
    stand = Stand()
    stand.hold.clear()
    waiting = [asyncio.ensure_future(stand.read()) for _ in range(2)]
    await asyncio.sleep(0)
    assert stand.reader.waiting == 2
    assert await stand.read() is Fallback.BUSY
    stand.hold.set()
    assert await asyncio.gather(*waiting) == [[1, 2]] * 2
    assert await stand.read() == [1, 2]


async def test_engines_that_left_are_forgotten() -> None:
    stand = Stand()
    stand.say = unreachable
    await stand.read(engines=ENGINES[:1])
    stand.reader.retain(frozenset())
    assert await stand.read(engines=ENGINES[:1]) is Fallback.UNREACHABLE
