"""The endpoint-picker protocol without a wire: what is answered to what, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.decision import COMMAND_REFUSED, Decision
from promptprefix_router.gateway.ext_proc_events import (
    Answer,
    BodyMode,
    BodyModes,
    Event,
    Refused,
    RequestBody,
    RequestBodyAnswer,
    RequestHead,
    RequestHeadAnswer,
    RequestPiece,
    RequestTrailers,
    RequestTrailersAnswer,
    ResponseBody,
    ResponseBodyAnswer,
    ResponseHead,
    ResponseHeadAnswer,
    ResponsePiece,
    ResponseTrailers,
    ResponseTrailersAnswer,
    Steering,
)
from promptprefix_router.gateway.ext_proc_exchange import PIECE_BYTES, Exchange, ProtocolError
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.matching.matcher import MatchKind, Question

from .samples import endpoint, routes

LIMIT = 100
PLACE = Steering("10.0.0.1:8000,10.0.0.2:8000")
FIRST, SECOND = routes(endpoint(1), endpoint(2)).endpoints
TOLD = "least-loaded;match=undeclared"
NAMED = "known"
COMMAND = b"command"


class Asked:
    """A picker that remembers its questions; it refuses `COMMAND` and rewrites to ``becomes``."""

    def __init__(self, becomes: bytes | None = None) -> None:
        self.questions: list[Question] = []
        self.becomes = becomes

    def resolves(self, name: str, tenant: str) -> bool:
        """Know one name."""
        return name == NAMED

    def rewritten(self, decision: Decision, body: bytes) -> bytes | None:
        """Return what the test says."""
        assert decision.endpoint is FIRST
        assert body == self.questions[-1].body
        return self.becomes

    def decide(self, question: Question) -> Decision:
        """Pick the first endpoint, with the second behind it."""
        self.questions.append(question)
        if question.body == COMMAND:
            return COMMAND_REFUSED
        return Decision(Outcome.LEAST_LOADED, MatchKind.UNDECLARED, FIRST, (SECOND,))


def exchange(asked: Asked, budget: HoldBudget | None = None) -> Exchange:
    """Return a new exchange."""
    return Exchange(asked, LIMIT, budget or HoldBudget(10 * LIMIT))


def head(
    request: BodyMode = BodyMode.NONE, response: BodyMode = BodyMode.NONE, **fields: object
) -> RequestHead:
    """Return the headers of a request in known modes."""
    return RequestHead(path="/p", modes=BodyModes(request, response), **fields)  # type: ignore[arg-type]


def modes(request: BodyMode, response: BodyMode = BodyMode.NONE) -> BodyModes:
    """Return modes as an override."""
    return BodyModes(request, response)


BUFFERED, PARTIAL, STREAMED = BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED
DUPLEX, NONE = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE
GO_ON = RequestHeadAnswer()
STEER = RequestHeadAnswer(PLACE)
BODY, MORE, END = RequestBody(b"12345"), RequestBody(b"678"), RequestBody(b"90", end_of_stream=True)
LONG = b"x" * (LIMIT + 1)

# What a gateway says, and for each what is answered; then the body that decided, and if in part.
TABLE: list[tuple[str, list[Event], list[Sequence[Answer]], bytes, bool]] = [
    (
        "buffered: the body's answer tells",
        [head(BUFFERED), RequestBody(b"{}", end_of_stream=True)],
        [(GO_ON,), (RequestBodyAnswer(PLACE),)],
        b"{}",
        False,
    ),
    (
        "buffered, with trailers: the body is whole without an end",
        [head(BUFFERED), RequestBody(b"{}"), RequestTrailers()],
        [(GO_ON,), (RequestBodyAnswer(PLACE),), (RequestTrailersAnswer(),)],
        b"{}",
        False,
    ),
    (
        "buffered: too long to be read whole",
        [head(BUFFERED), RequestBody(LONG, end_of_stream=True)],
        [(GO_ON,), (RequestBodyAnswer(PLACE),)],
        LONG[:LIMIT],
        True,
    ),
    (
        "buffered in part: cut by the gateway, the rest passes it by",
        [head(PARTIAL), BODY],
        [(GO_ON,), (RequestBodyAnswer(PLACE),)],
        b"12345",
        True,
    ),
    (
        "buffered in part: whole",
        [head(PARTIAL), RequestBody(b"{}", end_of_stream=True)],
        [(GO_ON,), (RequestBodyAnswer(PLACE),)],
        b"{}",
        False,
    ),
    (
        "full duplex: headers and pieces are given back at the end",
        [head(DUPLEX), BODY, MORE, END],
        [(), (), (), (STEER, RequestPiece(b"1234567890", end_of_stream=True))],
        b"1234567890",
        False,
    ),
    (
        "full duplex, with trailers",
        [head(DUPLEX), BODY, RequestTrailers()],
        [(), (), (STEER, RequestPiece(b"12345"), RequestTrailersAnswer())],
        b"12345",
        False,
    ),
    (
        "full duplex: the end comes alone",
        [head(DUPLEX), BODY, RequestBody(b"", end_of_stream=True)],
        [(), (), (STEER, RequestPiece(b"12345", end_of_stream=True))],
        b"12345",
        False,
    ),
    (
        "full duplex: too long, so the rest passes piece by piece",
        [head(DUPLEX), BODY, RequestBody(LONG), MORE, END],
        [
            (),
            (),
            (STEER, RequestPiece(b"12345" + LONG)),
            (RequestPiece(b"678"),),
            (RequestPiece(b"90", end_of_stream=True),),
        ],
        (b"12345" + LONG)[:LIMIT],
        True,
    ),
    (
        "full duplex: an end that is shown twice counts once",
        [head(DUPLEX), BODY, END, END],
        [(), (), (STEER, RequestPiece(b"1234590", end_of_stream=True)), ()],
        b"1234590",
        False,
    ),
    (
        "full duplex is what a gateway does that does not say",
        [RequestHead(path="/p"), BODY, END],
        [(), (), (STEER, RequestPiece(b"1234590", end_of_stream=True))],
        b"1234590",
        False,
    ),
    (
        "no body",
        [head(DUPLEX, end_of_stream=True)],
        [(STEER,)],
        b"",
        True,
    ),
    (
        "no body, buffered: none is asked for",
        [head(BUFFERED, BUFFERED, end_of_stream=True)],
        [(RequestHeadAnswer(PLACE, modes(NONE)),)],
        b"",
        True,
    ),
    (
        "the name of a prefix decides: the body is not asked for",
        [head(BUFFERED, prefix_name=NAMED)],
        [(RequestHeadAnswer(PLACE, modes(NONE)),)],
        b"",
        True,
    ),
    (
        "the name of a prefix decides: the body is shown nevertheless",
        [head(BUFFERED, prefix_name=NAMED), RequestBody(b"{}", end_of_stream=True)],
        [(RequestHeadAnswer(PLACE, modes(NONE)),), (RequestBodyAnswer(),)],
        b"",
        True,
    ),
    (
        "the name of a prefix decides, full duplex: the pieces are given back",
        [head(DUPLEX, prefix_name=NAMED), BODY, END],
        [
            (STEER,),
            (RequestPiece(b"12345"),),
            (RequestPiece(b"90", end_of_stream=True),),
        ],
        b"",
        True,
    ),
    (
        "an unknown name waits for the body",
        [head(BUFFERED, prefix_name="unknown"), RequestBody(b"{}", end_of_stream=True)],
        [(GO_ON,), (RequestBodyAnswer(PLACE),)],
        b"{}",
        False,
    ),
    (
        "streamed: the headers decide, the pieces are left as they are",
        [head(STREAMED), BODY, END],
        [
            (RequestHeadAnswer(PLACE, modes(NONE)),),
            (RequestBodyAnswer(),),
            (RequestBodyAnswer(),),
        ],
        b"",
        True,
    ),
    ("not shown: the headers decide", [head(NONE)], [(STEER,)], b"", True),
    (
        "the response's body is not asked for",
        [head(BUFFERED, STREAMED), RequestBody(b"{}", end_of_stream=True)],
        [(RequestHeadAnswer(None, modes(BUFFERED)),), (RequestBodyAnswer(PLACE),)],
        b"{}",
        False,
    ),
]


@pytest.mark.parametrize(
    ("events", "answers", "body", "partial"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_a_request(
    events: list[Event], answers: list[Sequence[Answer]], body: bytes, partial: bool
) -> None:
    asked, budget = Asked(), HoldBudget(10 * LIMIT)
    under_test = exchange(asked, budget)
    assert [tuple(under_test.feed(event)) for event in events] == answers
    (question,) = asked.questions
    assert (question.path, question.body, question.partial) == ("/p", body, partial)
    assert budget.held == 0
    assert not under_test.holding


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_that_becomes_another(has_length: bool) -> None:
    buffered = exchange(Asked(b"other"))
    buffered.feed(head(BUFFERED, has_length=has_length))
    assert tuple(buffered.feed(RequestBody(b"{}", end_of_stream=True))) == (
        RequestBodyAnswer(PLACE, b"other", has_length),
    )
    duplex = exchange(Asked(b"other"))
    duplex.feed(head(DUPLEX, has_length=has_length))
    duplex.feed(BODY)
    assert tuple(duplex.feed(END)) == (STEER, RequestPiece(b"other", end_of_stream=True))


@pytest.mark.parametrize(
    "events",
    [
        [head(BUFFERED), RequestBody(LONG, end_of_stream=True)],
        [head(PARTIAL), BODY],
        [head(DUPLEX), BODY, RequestBody(LONG), END],
        [head(DUPLEX, prefix_name=NAMED), BODY, END],
    ],
)
def test_a_body_that_was_not_seen_whole_stays_as_it_is(events: list[Event]) -> None:
    under_test = exchange(Asked(b"other"))
    answers = [answer for event in events for answer in under_test.feed(event)]
    assert b"other" not in {getattr(answer, "body", None) for answer in answers}


@pytest.mark.parametrize(
    "events",
    [
        [head(BUFFERED), RequestBody(COMMAND, end_of_stream=True)],
        [head(DUPLEX), RequestBody(COMMAND, end_of_stream=True)],
        [head(DUPLEX), RequestBody(COMMAND[:3]), RequestBody(COMMAND[3:]), RequestTrailers()],
        [RequestHead(), RequestBody(COMMAND), RequestBody(b"", end_of_stream=True)],
    ],
)
def test_a_refusal_ends_the_exchange(events: list[Event]) -> None:
    under_test = exchange(Asked())
    answers = [answer for event in events for answer in under_test.feed(event)]
    refusal = answers.pop()
    assert isinstance(refusal, Refused)
    assert refusal.status == 403
    assert set(answers) <= {GO_ON}
    assert under_test.refused
    assert not under_test.feed(END)
    assert not under_test.hurry()


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
