"""The small HTTP server: bounded, and never surprised by its peer."""

from __future__ import annotations

import asyncio
import itertools
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix_router.doors import http_door
from promptprefix_router.doors.http_door import (
    MAX_HEAD_BYTES,
    HttpDoor,
    HttpRequest,
    HttpResponse,
    open_door,
    open_local_door,
)

LIMIT = 100


class Wire:
    """A transport that remembers what was written and whether it was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        """Remember ``data``."""
        self.written += data

    def close(self) -> None:
        """Remember the end."""
        self.closed = True

    def pause_reading(self) -> None:
        """Remember that nothing is read."""
        self.reading = False

    def resume_reading(self) -> None:
        """Remember that it goes on."""
        self.reading = True

    def abort(self) -> None:
        """Remember the end."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether the end is near."""
        return self.closed


class Conversation:
    """A door with a handler that records and answers with the body's length."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.wire = Wire()
        self.door = HttpDoor(self._handle, LIMIT)
        self.door.connection_made(cast("asyncio.Transport", self.wire))

    def _handle(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        return HttpResponse(200, (("x-length", str(len(request.body))),))

    @property
    def statuses(self) -> list[bytes]:
        """Status codes of the answers."""
        return [part.split()[0] for part in self.wire.written.split(b"HTTP/1.1 ")[1:]]


POST = (
    b"POST /v1/x?q=1 HTTP/1.1\r\nHost: h\r\nX-Twice: 1\r\nx-twice: 2\r\n"
    b"content-length: 5\r\n\r\nhello"
)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, len(POST)), max_size=6))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    talk = Conversation()
    places = [0, *sorted(cuts), len(POST)]
    for start, end in itertools.pairwise(places):
        talk.door.data_received(POST[start:end])
    (request,) = talk.requests
    assert (request.method, request.path, request.target) == ("POST", "/v1/x", "/v1/x?q=1")
    assert request.headers[b"x-twice"] == b"1"
    assert request.body == b"hello"
    assert talk.wire.written == b"HTTP/1.1 200 OK\r\nx-length: 5\r\ncontent-length: 0\r\n\r\n"
    assert not talk.wire.closed


def test_a_connection_serves_many_requests() -> None:
    talk = Conversation()
    for _ in range(3):
        talk.door.data_received(POST)
    assert talk.statuses == [b"200"] * 3


def test_the_peer_may_close() -> None:
    talk = Conversation()
    talk.door.data_received(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert talk.statuses == [b"200"]
    assert b"connection: close" in talk.wire.written
    assert talk.wire.closed


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 not http\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 101\r\n\r\n" + b"x" * 101, b"413"),
        (b"GET / HTTP/1.1\r\na: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"400"),
    ],
)
def test_what_is_too_large_or_no_http_ends_the_connection(data: bytes, status: bytes) -> None:
    talk = Conversation()
    talk.door.data_received(data)
    assert talk.statuses == [status]
    assert talk.wire.closed


def test_a_peer_that_left_gets_no_answer() -> None:
    talk = Conversation()
    talk.door.connection_lost(None)
    talk.door.data_received(POST)
    assert talk.wire.written == b""


class Later(Conversation):
    """A door whose answers come when their future has one."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[asyncio.Future[HttpResponse]] = []
        self.door = HttpDoor(self._promise, LIMIT)
        self.door.connection_made(cast("asyncio.Transport", self.wire))

    def _promise(self, request: HttpRequest) -> asyncio.Future[HttpResponse]:
        self.requests.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


async def turns() -> None:
    """Let tasks that can go on do so."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_answers_that_come_later_come_in_order_and_nothing_is_read_meanwhile() -> None:
    talk = Later()
    talk.door.data_received(POST + POST)
    await turns()
    assert (len(talk.requests), talk.wire.reading, talk.statuses) == (1, False, [])
    talk.answers[0].set_result(HttpResponse(200))
    await turns()
    assert (len(talk.requests), talk.wire.reading, talk.statuses) == (2, False, [b"200"])
    talk.answers[1].set_result(HttpResponse(404))
    await turns()
    assert (talk.wire.reading, talk.statuses) == (True, [b"200", b"404"])


async def test_a_peer_that_leaves_is_not_waited_for() -> None:
    talk = Later()
    talk.door.data_received(POST)
    talk.door.connection_lost(None)
    await turns()
    assert talk.answers[0].cancelled()
    assert talk.wire.written == b""


@pytest.fixture
async def public_port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(http_door, "MAX_GUESTS", 2)
    server = await open_door(lambda _: HttpResponse(200), "127.0.0.1", 0, public=True)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_local_door_takes_the_place_of_one_that_was_left(tmp_path: Path) -> None:
    path = tmp_path / "picker.sock"
    for _ in range(2):
        server = await open_local_door(lambda _: HttpResponse(200), path, 100)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(POST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        server.close()
        assert path.is_socket()


async def test_many_may_dial_a_local_door_while_it_is_busy(tmp_path: Path) -> None:
    """The kernel refuses a connection to a Unix socket at once when too many wait there."""
    path = tmp_path / "picker.sock"
    server = await open_local_door(lambda _: HttpResponse(200), path, 100)
    dialled = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(500)]
    try:
        for each in dialled:
            each.setblocking(False)
            each.connect(str(path))
    finally:
        for each in dialled:
            each.close()
        server.close()


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def knock(port: int, data: bytes = b"") -> Peer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def heard(peer: Peer) -> bytes:
    """Return all that the door says until it ends the connection."""
    try:
        return await asyncio.wait_for(peer[0].read(), 5)
    except ConnectionError:
        return b""
    finally:
        peer[1].close()


async def test_a_stranger_gets_one_answer_however_much_it_asks(public_port: int) -> None:
    answer = await heard(await knock(public_port, b"GET / HTTP/1.1\r\n\r\n" * 1_000))
    assert answer == HttpResponse(200, (("connection", "close"),)).encode()


async def test_a_stranger_that_says_nothing_is_not_waited_for(
    public_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_door, "PATIENCE_S", 0.02)
    assert await heard(await knock(public_port)) == b""
    assert await heard(await knock(public_port, b"GET / HTTP/1.1\r\nHo")) == b""


async def test_the_oldest_stranger_makes_room(public_port: int) -> None:
    first, second, third = [await knock(public_port) for _ in range(3)]
    assert await heard(first) == b""
    for peer in (second, third):
        peer[1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert await heard(peer) == HttpResponse(200, (("connection", "close"),)).encode()
