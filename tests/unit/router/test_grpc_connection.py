"""gRPC over HTTP/2: calls, windows, and peers that break the rules or go too far."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix_router.gateway import grpc_connection as module
from promptprefix_router.gateway.grpc_connection import CALL_WINDOW
from promptprefix_router.gateway.hpack import written
from promptprefix_router.gateway.http2_frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITIZED,
    Code,
    Kind,
    frame,
    number_frame,
    settings_frame,
)
from promptprefix_router.gateway.http2_reader import MAX_BLOCK_BYTES

from .grpc_peer import HOLD, Frame, Peer, message

OK = (b"grpc-status", b"0")


@pytest.fixture
async def peer() -> Peer:
    return Peer().greet()


async def test_a_call_is_answered_and_ends(peer: Peer) -> None:
    peer.begin(1)
    peer.tell(1, message(b"one") + message(b""))
    peer.tell(1, message(b"two"), END_STREAM)
    data, headers = peer.answer(1)
    assert data == message(b"one") + message(b"") + message(b"two")
    assert (headers[b":status"], headers[b"grpc-status"]) == (b"200", b"0")
    assert peer.calls[0].closed_times == 1
    assert (peer.limits.open, peer.limits.held) == (0, 0)


async def test_an_end_before_the_peers_tells_it_to_stop(peer: Peer) -> None:
    peer.begin(1)
    peer.calls[0].call.finish()
    kinds = [each.kind for each in peer.heard()]
    assert kinds == [Kind.HEADERS, Kind.HEADERS, Kind.RST_STREAM]
    peer.tell(1, message(b"late"))
    peer.say(number_frame(Kind.RST_STREAM, 1, Code.CANCEL))
    peer.say(number_frame(Kind.WINDOW_UPDATE, 1, 1))
    assert peer.failure is None
    peer.calls[0].call.send(b"nobody listens")
    assert (peer.heard(), peer.calls[0].heard) == ([], [])


async def test_a_method_that_nobody_serves(peer: Peer) -> None:
    peer.begin(1, b"/other")
    assert peer.answer(1)[1][b"grpc-status"] == b"12"
    assert peer.limits.open == 0


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(1, 40), st.booleans())
@settings(deadline=None)
def test_messages_arrive_whole_however_they_are_cut(
    texts: list[bytes], step: int, by_frames: bool
) -> None:
    async def talk() -> None:
        peer = Peer().greet()
        peer.begin(1)
        sent = b"".join(map(message, texts))
        parts = [sent[at : at + step] for at in range(0, len(sent), step)]
        wire = b"".join(frame(Kind.DATA, 0, 1, part) for part in parts)
        if by_frames:
            wire = frame(Kind.DATA, 0, 1, sent) if len(sent) <= FRAME_BYTES else wire
        for at in range(0, len(wire), step):
            peer.say(wire[at : at + step])
        assert peer.calls[0].heard == texts
        assert peer.answer(1)[0] == sent
        assert peer.limits.held == 0

    asyncio.run(talk())


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_no_bytes_break_more_than_their_connection(data: bytes) -> None:
    async def talk() -> None:
        for greeted in (True, False):
            peer = Peer()
            if greeted:
                peer.greet()
                peer.begin(1)
            peer.say(data)
            peer.connection.connection_lost(None)
            assert (peer.limits.open, peer.limits.held) == (0, 0)
            assert all(each.closed_times == 1 for each in peer.calls)

    asyncio.run(talk())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=12)
        ),
        max_size=12,
    )
)
@settings(deadline=None)
def test_no_frames_break_more_than_their_connection(
    frames: list[tuple[int, int, int, bytes]],
) -> None:
    async def talk() -> None:
        peer = Peer().greet()
        peer.begin(1)
        for kind, flags, stream, payload in frames:
            if peer.wire.closed:
                break
            peer.say(frame(kind, flags, stream, payload))
        peer.connection.connection_lost(None)
        assert (peer.limits.open, peer.limits.held) == (0, 0)
        assert all(each.closed_times == 1 for each in peer.calls)

    asyncio.run(talk())


BROKEN: tuple[tuple[str, bytes, Code], ...] = (
    ("data of nothing", frame(Kind.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    ("data of a call that nobody opened", frame(Kind.DATA, 0, 7, b"x"), Code.PROTOCOL_ERROR),
    ("a window of such a call", number_frame(Kind.WINDOW_UPDATE, 7, 1), Code.PROTOCOL_ERROR),
    ("an end of such a call", number_frame(Kind.RST_STREAM, 7, 1), Code.PROTOCOL_ERROR),
    ("a server's stream", frame(Kind.HEADERS, END_HEADERS, 2), Code.PROTOCOL_ERROR),
    ("a push", frame(Kind.PUSH_PROMISE, END_HEADERS, 1), Code.PROTOCOL_ERROR),
    ("headers from nowhere", frame(Kind.CONTINUATION, 0, 1), Code.PROTOCOL_ERROR),
    (
        "headers that another frame interrupts",
        frame(Kind.HEADERS, 0, 1) + frame(Kind.PING, 0, 0, b"12345678"),
        Code.PROTOCOL_ERROR,
    ),
    (
        "headers of another call between",
        frame(Kind.HEADERS, 0, 1) + frame(Kind.CONTINUATION, END_HEADERS, 3),
        Code.PROTOCOL_ERROR,
    ),
    ("no headers at all", frame(Kind.HEADERS, END_HEADERS, 1, b"\xff"), Code.COMPRESSION_ERROR),
    (
        "padding without end",
        frame(Kind.HEADERS, END_HEADERS | PADDED, 1, b"\x09x"),
        Code.PROTOCOL_ERROR,
    ),
    ("a long frame", b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", Code.FRAME_SIZE_ERROR),
    ("a short ping", frame(Kind.PING, 0, 0, b"1234"), Code.FRAME_SIZE_ERROR),
    ("a short end", frame(Kind.RST_STREAM, 0, 1, b"1"), Code.FRAME_SIZE_ERROR),
    ("odd settings", frame(Kind.SETTINGS, 0, 0, b"1234567"), Code.FRAME_SIZE_ERROR),
    ("no window", number_frame(Kind.WINDOW_UPDATE, 0, 0), Code.FLOW_CONTROL_ERROR),
    ("a huge window", number_frame(Kind.WINDOW_UPDATE, 0, MAX_WINDOW), Code.FLOW_CONTROL_ERROR),
    (
        "a huge first window",
        frame(Kind.SETTINGS, 0, 0, b"\0\x04\x80\0\0\0"),
        Code.FLOW_CONTROL_ERROR,
    ),
    ("tiny frames", frame(Kind.SETTINGS, 0, 0, b"\0\x05\0\0\0\x01"), Code.PROTOCOL_ERROR),
    (
        "headers without end",
        frame(Kind.HEADERS, 0, 1) + frame(Kind.CONTINUATION, 0, 1, b"x" * FRAME_BYTES) * 2,
        Code.ENHANCE_YOUR_CALM,
    ),
)


@pytest.mark.parametrize(
    ("data", "code"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
async def test_who_breaks_the_rules_is_told_and_hung_up_on(
    peer: Peer, data: bytes, code: Code
) -> None:
    peer.say(data)
    assert peer.failure is code


async def test_who_speaks_no_http2_is_hung_up_on() -> None:
    peer = Peer()
    peer.heard()
    peer.say(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.failure is Code.PROTOCOL_ERROR


async def test_a_greeting_may_come_in_pieces() -> None:
    peer = Peer()
    for at in range(len(PREFACE)):
        peer.say(PREFACE[at : at + 1])
    peer.say(settings_frame({}))
    assert any(each.kind is Kind.SETTINGS and each.flags & ACK for each in peer.heard())
    assert peer.failure is None


async def test_headers_in_pieces_with_padding_and_priority(peer: Peer) -> None:
    block = written((b":path", b"/test/Echo"))
    head = b"\x03" + bytes(5) + block[:4] + bytes(3)
    peer.say(frame(Kind.HEADERS, PADDED | PRIORITIZED, 1, head))
    peer.say(frame(Kind.CONTINUATION, 0, 1, block[4:6]))
    peer.say(frame(Kind.CONTINUATION, END_HEADERS, 1, block[6:]))
    peer.tell(1, b"\x02" + message(b"x") + bytes(2), PADDED | END_STREAM)
    assert peer.answer(1)[0] == message(b"x")
    assert len(block) < MAX_BLOCK_BYTES


async def test_trailers_end_what_the_peer_says(peer: Peer) -> None:
    peer.begin(1)
    peer.say(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, written((b"x", b"y"))))
    assert peer.answer(1)[1][b"grpc-status"] == b"0"


async def test_a_ping_is_answered(peer: Peer) -> None:
    peer.say(frame(Kind.PING, 0, 0, b"12345678"))
    assert peer.heard() == [Frame(Kind.PING, ACK, 0, b"12345678")]


async def test_frames_of_no_known_kind_are_passed_over(peer: Peer) -> None:
    peer.say(frame(99, 255, 3, b"what?") + frame(Kind.PRIORITY, 0, 3, bytes(5)))
    peer.say(frame(Kind.GOAWAY, 0, 0, bytes(8)))
    assert (peer.failure, peer.heard()) == (None, [])


async def test_calls_beyond_the_limit_are_refused() -> None:
    peer = Peer(calls=2).greet()
    for stream in (1, 3, 5):
        peer.begin(stream, HOLD)
    refused = number_frame(Kind.RST_STREAM, 5, Code.REFUSED_STREAM)
    assert [each for each in peer.heard() if each.stream == 5] == [
        Frame(Kind.RST_STREAM, 0, 5, refused[-4:])
    ]
    peer.say(number_frame(Kind.RST_STREAM, 1, Code.CANCEL))
    peer.begin(7, HOLD)
    assert (peer.limits.open, len(peer.calls)) == (2, 3)
    assert peer.calls[0].closed_times == 1


@pytest.mark.parametrize("head", [b"\0\0\0\x10\x01", b"\x01\0\0\0\x01"], ids=["long", "compressed"])
async def test_messages_that_are_not_taken_end_their_call_alone(peer: Peer, head: bytes) -> None:
    peer.begin(1)
    peer.begin(3)
    peer.tell(1, head)
    assert peer.answer(1)[1][b"grpc-status"] == b"8"
    peer.tell(3, message(b"x"))
    assert peer.answer(3)[0] == message(b"x")
    assert (peer.failure, peer.limits.held) == (None, 0)


async def test_incomplete_messages_of_all_calls_are_bounded() -> None:
    peer = Peer(message_bytes=4096, held=5000).greet()
    part = message(bytes(4096))[:3000]
    for stream in (1, 3):
        peer.begin(stream)
        peer.tell(stream, part)
    assert peer.answer(3)[1][b"grpc-status"] == b"8"
    assert (peer.limits.held, peer.limits.open) == (3000, 1)
    peer.tell(1, bytes(1101))
    assert peer.answer(1)[0] == message(bytes(4096))
    assert peer.limits.held == 0


async def test_an_answer_waits_for_the_windows_of_the_peer() -> None:
    peer = Peer(message_bytes=1 << 20, held=1 << 21).greet(initial_window_size=10)
    peer.begin(1)
    peer.tell(1, message(b"x" * 100), END_STREAM)
    data, headers = peer.answer(1)
    assert (data, b"grpc-status" in headers) == (message(b"x" * 100)[:10], False)
    peer.say(number_frame(Kind.WINDOW_UPDATE, 1, 50))
    assert len(peer.answer(1)[0]) == 50
    peer.say(settings_frame({module.Setting.INITIAL_WINDOW_SIZE: 5}))
    peer.say(number_frame(Kind.WINDOW_UPDATE, 1, 5))
    assert peer.answer(1)[0] == b"", "the window is below zero"
    peer.say(number_frame(Kind.WINDOW_UPDATE, 1, 1000))
    data, headers = peer.answer(1)
    assert (len(data), headers[b"grpc-status"]) == (45, b"0")


async def test_calls_share_the_window_of_the_connection() -> None:
    peer = Peer(message_bytes=1 << 20, held=1 << 21).greet(initial_window_size=1 << 20)
    big = message(bytes(40_000))
    for stream in (1, 3):
        peer.begin(stream)
        for at in range(0, len(big), FRAME_BYTES):
            peer.tell(stream, big[at : at + FRAME_BYTES])
        peer.end(stream)
    came = sum(len(each.payload) for each in peer.heard() if each.kind is Kind.DATA)
    assert came == DEFAULT_WINDOW
    peer.say(number_frame(Kind.WINDOW_UPDATE, 0, 100_000))
    rest = peer.heard()
    assert came + sum(len(each.payload) for each in rest if each.kind is Kind.DATA) == 2 * len(big)
    assert peer.limits.open == 0


async def test_the_peer_may_go_on_as_it_is_read(peer: Peer) -> None:
    peer.begin(1, HOLD)
    sent = 0
    while sent < 3 * CALL_WINDOW:
        peer.tell(1, message(bytes(4091)) * 4)
        sent += 4 * 4096
    updates = [each for each in peer.heard() if each.kind is Kind.WINDOW_UPDATE]
    given = sum(int.from_bytes(each.payload, "big") for each in updates if each.stream == 1)
    assert sent - given < CALL_WINDOW
    assert peer.failure is None


async def test_who_leaves_answers_unread_may_not_go_on() -> None:
    peer = Peer().greet(initial_window_size=0)
    peer.begin(1)
    with contextlib.suppress(AssertionError):
        for _ in range(2 * module.MAX_BACKLOG_BYTES // 16_384 + 2):
            peer.tell(1, message(bytes(4091)) * 4)
            assert not peer.wire.closed
    assert peer.failure is Code.FLOW_CONTROL_ERROR
    assert len(peer.calls[0].heard) * 4096 <= module.MAX_BACKLOG_BYTES + 2 * CALL_WINDOW


async def test_a_call_that_waits_takes_a_window_and_no_more(peer: Peer) -> None:
    peer.begin(1, HOLD)
    call = peer.calls[0].call
    call.wait()
    for _ in range(CALL_WINDOW // 16_384):
        peer.tell(1, message(bytes(4091)) * 4)
    assert not [each for each in peer.heard() if each.kind is Kind.WINDOW_UPDATE and each.stream]
    call.resume()
    [update] = [each for each in peer.heard() if each.stream == 1]
    assert int.from_bytes(update.payload, "big") == CALL_WINDOW


async def test_who_does_not_read_is_not_read_from(peer: Peer) -> None:
    peer.connection.pause_writing()
    assert peer.wire.paused
    peer.connection.resume_writing()
    assert not peer.wire.paused


async def test_a_leaving_server_serves_what_is_on_its_way(peer: Peer) -> None:
    peer.begin(1)
    peer.heard()
    peer.connection.leave()
    goaway, ping = peer.heard()
    assert goaway.payload == MAX_WINDOW.to_bytes(4, "big") + bytes(4)
    peer.begin(3)
    peer.tell(3, message(b"x"), END_STREAM)
    assert peer.answer(3)[0] == message(b"x")
    peer.say(frame(Kind.PING, ACK, 0, ping.payload))
    [last] = peer.heard()
    assert last.payload[:4] == (3).to_bytes(4, "big")
    peer.begin(5)
    assert [each.kind for each in peer.heard()] == [Kind.RST_STREAM]
    assert not peer.wire.closed
    peer.end(1)
    assert peer.wire.closed


async def test_what_is_cut_tells_its_handlers_once(peer: Peer) -> None:
    peer.begin(1)
    peer.begin(3, HOLD)
    peer.connection.cut()
    peer.connection.connection_lost(None)
    assert [each.closed_times for each in peer.calls] == [1, 1]
    assert peer.wire.closed
    assert peer.limits.left.is_set()


async def test_silent_peers_are_asked_and_then_left(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[float, object, tuple[object, ...]]] = []

    class Timer:
        def cancel(self) -> None:
            pass

    class Loop:
        def call_later(self, seconds: float, call: object, *arguments: object) -> Timer:
            waits.append((seconds, call, arguments))
            return Timer()

    loop = Loop()
    monkeypatch.setattr(module.asyncio, "get_running_loop", lambda: loop)

    def look() -> None:
        _, call, arguments = waits[-1]
        assert callable(call)
        call(*arguments)

    mute = Peer()
    assert waits[-1][0] == module.GREETING_S
    look()
    assert mute.wire.aborted

    peer = Peer().greet()
    look()
    assert waits[-1][0] == module.QUIET_S
    look()
    assert waits[-1][0] == module.PATIENCE_S
    [ping] = peer.heard()
    peer.say(frame(Kind.PING, ACK, 0, ping.payload))
    look()
    assert waits[-1][0] == module.QUIET_S
    look()
    look()
    assert peer.wire.aborted
