"""The endpoint-picker protocol without a wire: responses, haste, and what is given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.gateway.ext_proc_events import (
    Event,
    RequestBody,
    RequestHeadAnswer,
    RequestPiece,
    RequestTrailers,
    ResponseBody,
    ResponseBodyAnswer,
    ResponseHead,
    ResponseHeadAnswer,
    ResponsePiece,
    ResponseTrailers,
    ResponseTrailersAnswer,
)
from promptprefix_router.gateway.ext_proc_exchange import PIECE_BYTES, ProtocolError
from promptprefix_router.gateway.hold_budget import HoldBudget

from .ext_proc_talk import (
    BODY,
    BUFFERED,
    DUPLEX,
    END,
    LIMIT,
    MORE,
    NAMED,
    NONE,
    STEER,
    STREAMED,
    TOLD,
    Asked,
    exchange,
    head,
)

RESPONSES = (ResponseHead("10.0.0.2:8000"), ResponseBody(b"a"), ResponseBody(b"b", True))


def test_a_response_that_is_only_shown() -> None:
    under_test = exchange(Asked())
    under_test.feed(head(NONE, STREAMED))
    answers = [tuple(under_test.feed(event)) for event in (*RESPONSES, ResponseTrailers())]
    assert answers == [
        (ResponseHeadAnswer(TOLD),),
        (ResponseBodyAnswer(),),
        (ResponseBodyAnswer(),),
        (ResponseTrailersAnswer(),),
    ]
    assert under_test.served == "10.0.0.2:8000"


def test_a_response_that_must_be_given_back() -> None:
    under_test = exchange(Asked())
    under_test.feed(head(NONE, DUPLEX))
    assert [tuple(under_test.feed(event)) for event in RESPONSES] == [
        (ResponseHeadAnswer(TOLD),),
        (ResponsePiece(b"a"),),
        (ResponsePiece(b"b", end_of_stream=True),),
    ]
    assert not under_test.may_end


def test_the_gateways_own_answer_to_an_unfinished_request_passes() -> None:
    """Such as 413 for a body that is too large for its buffer."""
    budget = HoldBudget(LIMIT)
    for mode in (BUFFERED, DUPLEX):
        under_test = exchange(Asked(), budget)
        under_test.feed(head(mode))
        if mode is DUPLEX:
            under_test.feed(BODY)
        assert tuple(under_test.feed(ResponseHead())) == (ResponseHeadAnswer(None),)
        assert not under_test.hurry()
        assert budget.held == 0


@pytest.mark.parametrize(
    "events",
    [
        [END],
        [RequestTrailers()],
        [ResponseHead()],
        [head(BUFFERED), head(BUFFERED)],
        [head(BUFFERED), RequestTrailers()],
    ],
)
def test_what_comes_out_of_turn_is_an_error(events: list[Event]) -> None:
    under_test = exchange(Asked())
    *before, last = events
    for event in before:
        under_test.feed(event)
    with pytest.raises(ProtocolError):
        under_test.feed(last)


def test_without_room_a_body_is_decided_by_what_was_seen() -> None:
    budget = HoldBudget(7)
    first, second = Asked(), Asked()
    one, other = exchange(first, budget), exchange(second, budget)
    one.feed(head(DUPLEX))
    other.feed(head(DUPLEX))
    assert not one.feed(BODY)
    assert tuple(other.feed(MORE)) == (STEER, RequestPiece(b"678"))
    assert second.questions[0].partial
    one.close()
    assert budget.held == 0


def test_a_slow_client_is_decided_early() -> None:
    asked = Asked()
    under_test = exchange(asked)
    under_test.feed(head(DUPLEX))
    under_test.feed(BODY)
    assert tuple(under_test.hurry()) == (STEER, RequestPiece(b"12345"))
    assert asked.questions[0].partial
    assert tuple(under_test.feed(END)) == (RequestPiece(b"90", end_of_stream=True),)


@pytest.mark.parametrize(
    ("events", "may_end"),
    [
        ([head(BUFFERED)], False),
        ([head(BUFFERED), END], True),
        ([head(DUPLEX), BODY], False),
        ([head(DUPLEX), BODY, END], True),
        ([head(DUPLEX, prefix_name=NAMED), BODY], False),
        ([head(DUPLEX, DUPLEX), END], False),
    ],
)
def test_when_the_gateway_can_go_on_alone(events: list[Event], may_end: bool) -> None:
    under_test = exchange(Asked())
    for event in events:
        under_test.feed(event)
    assert under_test.may_end is may_end


@given(
    pieces=st.lists(st.binary(max_size=60), max_size=8),
    trailers=st.booleans(),
    hurried_after=st.integers(0, 8),
    room=st.integers(0, 300),
)
def test_every_byte_is_given_back_once_in_order(
    pieces: list[bytes], trailers: bool, hurried_after: int, room: int
) -> None:
    budget = HoldBudget(room)
    under_test = exchange(Asked(), budget)
    answers = list(under_test.feed(head(DUPLEX)))
    for index, piece in enumerate(pieces):
        answers += under_test.feed(RequestBody(piece))
        if index == hurried_after:
            answers += under_test.hurry()
    answers += under_test.feed(RequestTrailers() if trailers else RequestBody(b"", True))
    given_back = [answer for answer in answers if isinstance(answer, RequestPiece)]
    assert b"".join(piece.body for piece in given_back) == b"".join(pieces)
    assert [piece.end_of_stream for piece in given_back if piece.end_of_stream] == (
        [] if trailers else [True]
    )
    assert isinstance(answers[0], RequestHeadAnswer)
    assert budget.held == 0


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("last", [True, False])
def test_long_pieces_are_given_back_in_parts(size: int, last: bool) -> None:
    under_test = exchange(Asked())
    under_test.feed(head(NONE, DUPLEX))
    body = bytes(range(251)) * (size // 251 + 1)
    parts = under_test.feed(ResponseBody(body[:size], last))
    pieces = [part for part in parts if isinstance(part, ResponsePiece)]
    assert b"".join(piece.body for piece in pieces) == body[:size]
    assert all(len(piece.body) <= PIECE_BYTES for piece in pieces)
    assert [piece.end_of_stream for piece in pieces if piece.end_of_stream] == [True] * last
    assert not last or pieces[-1].end_of_stream
