"""The endpoint-picker protocol without a wire: what is answered to what a request has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptprefix_router.gateway.ext_proc_events import (
    Answer,
    Event,
    Refused,
    RequestBody,
    RequestBodyAnswer,
    RequestHead,
    RequestHeadAnswer,
    RequestPiece,
    RequestTrailers,
    RequestTrailersAnswer,
)
from promptprefix_router.gateway.hold_budget import HoldBudget

from .ext_proc_talk import (
    BODY,
    BUFFERED,
    COMMAND,
    DUPLEX,
    END,
    GO_ON,
    LIMIT,
    LONG,
    MORE,
    NAMED,
    NONE,
    PARTIAL,
    PLACE,
    STEER,
    STREAMED,
    Asked,
    exchange,
    head,
    modes,
)

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
        False,
    ),
    (
        "no body, buffered: none is asked for",
        [head(BUFFERED, BUFFERED, end_of_stream=True)],
        [(RequestHeadAnswer(PLACE, modes(NONE)),)],
        b"",
        False,
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
