"""The small HTTP client: connections that are kept, and peers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from promptprefix_router.http_connection import UnreachableError
from promptprefix_router.precise.engine_client import EngineClient

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Say = Callable[[int, int], bytes | None]


class Peer:
    """A server that answers by the numbers of connection and question; None closes."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.connections = 0
        self.questions: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def end(self) -> None:
        """Wait for the end of all connections."""
        for writer in self._writers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self._writers.append(writer)
        self.connections += 1
        connection, question = self.connections, 0
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, OSError):
                break
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.questions.append(head + await reader.readexactly(length))
            question += 1
            answer = self._say(connection, question)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


@asynccontextmanager
async def talking(say: Say, limit: int = 100) -> AsyncIterator[tuple[Peer, Callable[[], object]]]:
    """Give a peer, and what asks it."""
    peer, client = Peer(say), EngineClient(limit)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield peer, lambda: client.post("127.0.0.1", port, f"127.0.0.1:{port}", "/tokenize", b"{}")
    client.retain(frozenset())
    server.close()
    await peer.end()


async def test_a_connection_is_kept_for_the_next_question() -> None:
    async with talking(lambda *_: ANSWER) as (peer, ask):
        assert [await ask(), await ask(), await ask()] == [(200, b"ok")] * 3
    assert peer.connections == 1
    assert peer.questions[0].startswith(b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1:")
    assert peer.questions[0].endswith(
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )


async def test_questions_at_a_time_have_connections_of_their_own() -> None:
    async with talking(lambda *_: ANSWER) as (peer, ask):
        assert await asyncio.gather(*(ask() for _ in range(6))) == [(200, b"ok")] * 6
        assert peer.connections == 6
        await asyncio.gather(*(ask() for _ in range(4)))
        assert peer.connections == 6


async def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    async with talking(lambda _, question: ANSWER if question == 1 else None) as (peer, ask):
        assert [await ask(), await ask()] == [(200, b"ok")] * 2
    assert peer.connections == 2


async def test_an_engine_that_wants_no_second_question_gets_none() -> None:
    last = ANSWER.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    async with talking(lambda *_: last) as (peer, ask):
        assert [await ask(), await ask()] == [(200, b"ok")] * 2
    assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n50\r\n" + b"x" * 80 + b"\r\n50\r\n"
        + b"x" * 80,
    ],
)  # fmt: skip
async def test_what_is_no_answer_is_unreachable(answer: bytes | None) -> None:
    async with talking(lambda *_: answer) as (_, ask):
        with pytest.raises(UnreachableError):
            await ask()


async def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        await EngineClient(100).post("127.0.0.1", 1, "127.0.0.1:1", "/tokenize", b"{}")


async def test_an_error_status_is_an_answer() -> None:
    async with talking(lambda *_: ANSWER.replace(b"200 OK", b"400 Bad")) as (_, ask):
        assert await ask() == (400, b"ok")


async def test_a_question_that_nobody_waits_for_ends_its_connection() -> None:
    async with talking(lambda connection, _: ANSWER if connection > 1 else b"") as (peer, ask):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ask()
        assert await ask() == (200, b"ok")
    assert peer.connections == 2
