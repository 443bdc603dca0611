"""Wire format of the gateway door against bytes made with Envoy's own message definitions."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.gateway.ext_proc_codec import decode, encode
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
from promptprefix_router.gateway.ext_proc_exchange import ProtocolError
from promptprefix_router.gateway.ext_proc_messages import ProcessingRequest, ProcessingResponse

PLACES = "10.0.0.1:8000,10.0.0.2:8000"

# Made with the package xds-protos 1.85.0.
EVENTS: list[tuple[Event, bytes]] = [
    (
        RequestHead(
            path="/v1/chat/completions",
            prefix_name="p",
            modes=BodyModes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED),
            subset=frozenset({"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3"}),
            forged=("x-gateway-destination-endpoint-subset",),
        ),
        b"\x12\xcf\x01\n\xcc\x01\n\x0f\n\x07:method\x1a\x04POST\n!\n\x05:path\x1a\x18/v"
        b"1/chat/completions?a=b\n\x13\n\x0ex-promptprefix\x1a\x01p\n\x18\n\x0ex-prompt"
        b"prefix\x1a\x06second\n(\n\x1ex-gateway-destination-endpoint\x1a\x06evil:1\n/"
        b"\n%x-gateway-destination-endpoint-subset\x1a\x06evil:2\n\x0c\n\x03old\x12\x05"
        b"styleBs\nq\n\x14envoy.lb.subset_hint\x12Y\nW\n%x-gateway-destination-endpoint"
        b"-subset\x12.2,\n\x0f\x1a\r10.0.0.1:8000\n\x19\x1a\x1710.0.0.2:8000, 10.0.0.3J"
        b"\x15\n\x01x\x12\x10\n\x0e\n\x01a\x12\t\x11\x00\x00\x00\x00\x00\x00\xf0?Z\x04"
        b"\x08\x04\x10\x02",
    ),
    (
        RequestBody(b"{}", end_of_stream=True),
        b'"\x06\n\x02{}\x10\x01',
    ),
    (
        ResponseBody(b"data"),
        b"*\x06\n\x04data",
    ),
    (
        RequestTrailers(),
        b"2\n\n\x08\n\x06\n\x01t\x1a\x011",
    ),
    (
        ResponseTrailers(),
        b":\x00",
    ),
    (
        ResponseHead("10.0.0.2:8000"),
        b"\x1a\x02\x18\x01BH\nF\n\x08envoy.lb\x12:\n8\n%x-gateway-destination-endpoint-"
        b"served\x12\x0f\x1a\r10.0.0.2:8000",
    ),
]
ANSWERS: list[tuple[Answer, bytes]] = [
    (
        RequestBodyAnswer(Steering(PLACES), b"other", tells_length=True),
        b"\x1ai\ng\x12\\\nA\n=\n\x1ex-gateway-destination-endpoint\x1a\x1b10.0.0.1:8000"
        b",10.0.0.2:8000\x18\x02\n\x17\n\x13\n\x0econtent-length\x1a\x015\x18\x02\x1a"
        b"\x07\n\x05otherBQ\nO\n\x08envoy.lb\x12C*A\n?\n\x1ex-gateway-destination-endpo"
        b"int\x12\x1d\x1a\x1b10.0.0.1:8000,10.0.0.2:8000",
    ),
    (
        RequestHeadAnswer(
            Steering(PLACES, ("x-gateway-destination-endpoint-subset",)),
            BodyModes(BodyMode.BUFFERED, BodyMode.NONE),
        ),
        b"\nn\nl\x12j\nA\n=\n\x1ex-gateway-destination-endpoint\x1a\x1b10.0.0.1:8000,10"
        b".0.0.2:8000\x18\x02\x12%x-gateway-destination-endpoint-subsetBQ\nO\n\x08envoy"
        b".lb\x12C*A\n?\n\x1ex-gateway-destination-endpoint\x12\x1d\x1a\x1b10.0.0.1:800"
        b"0,10.0.0.2:8000J\x02\x18\x02",
    ),
    (
        RequestBodyAnswer(Steering(PLACES)),
        b"\x1aG\nE\x12C\nA\n=\n\x1ex-gateway-destination-endpoint\x1a\x1b10.0.0.1:8000,"
        b"10.0.0.2:8000\x18\x02BQ\nO\n\x08envoy.lb\x12C*A\n?\n\x1ex-gateway-destination"
        b"-endpoint\x12\x1d\x1a\x1b10.0.0.1:8000,10.0.0.2:8000",
    ),
    (
        RequestHeadAnswer(),
        b"\n\x00",
    ),
    (
        RequestPiece(b"{}", end_of_stream=True),
        b"\x1a\x0c\n\n\x1a\x08\x1a\x06\n\x02{}\x10\x01",
    ),
    (
        ResponsePiece(b"data"),
        b'"\x0c\n\n\x1a\x08\x1a\x06\n\x04data',
    ),
    (
        ResponseBodyAnswer(),
        b'"\x00',
    ),
    (
        ResponseHeadAnswer("warm;match=header"),
        b"\x126\n4\x122\n0\n,\n\x17x-promptprefix-decision\x1a\x11warm;match=header\x18\x02",
    ),
    (
        RequestTrailersAnswer(),
        b"*\x00",
    ),
    (
        ResponseTrailersAnswer(),
        b"2\x00",
    ),
    (
        Refused(503, b"{}", "refused;match=command"),
        b":u\n\x03\x08\xf7\x03\x12\\\n$\n \n\x0ccontent-type\x1a\x10application/json"
        b"\x18\x02\n4\n0\n\x17x-promptprefix-decision\x1a\x15refused;match=command\x18"
        b"\x02\x1a\x02{}*\x0cpromptprefix",
    ),
]


@pytest.mark.parametrize(("event", "raw"), EVENTS)
def test_what_a_gateway_says(event: Event, raw: bytes) -> None:
    assert decode(raw) == event


@pytest.mark.parametrize(("answer", "raw"), ANSWERS)
def test_what_a_gateway_is_told(answer: Answer, raw: bytes) -> None:
    assert encode(answer) == ProcessingResponse.FromString(raw).SerializeToString()
    # Nothing in the bytes is unknown here.
    assert len(encode(answer)) == len(raw)


@pytest.mark.parametrize(
    ("hint", "subset"),
    [
        ("10.0.0.1:8000", {"10.0.0.1:8000"}),
        (" 10.0.0.1:8000 , [::1]:8000,", {"10.0.0.1:8000", "[::1]:8000"}),
        ("", set()),
        ([], set()),
        (["10.0.0.1"], {"10.0.0.1"}),
        (7, set()),
        (None, set()),
    ],
)
def test_subset_hints(hint: object, subset: set[str]) -> None:
    message = ProcessingRequest(request_headers={})
    space = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    space.update({"x-gateway-destination-endpoint-subset": hint})
    event = decode(message.SerializeToString())
    assert isinstance(event, RequestHead)
    assert event.subset == subset


def test_without_a_hint_every_endpoint_is_allowed() -> None:
    message = ProcessingRequest(request_headers={})
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({"other": "x"})
    event = decode(message.SerializeToString())
    assert isinstance(event, RequestHead)
    assert event.subset is None


@pytest.mark.parametrize("name", ["content-length", "content-type"])
def test_an_announced_length_is_noted(name: str) -> None:
    header = {"key": name, "raw_value": b"12"}
    message = ProcessingRequest(request_headers={"headers": {"headers": [header]}})
    event = decode(message.SerializeToString())
    assert isinstance(event, RequestHead)
    assert event.has_length is (name == "content-length")


def test_a_message_without_a_question_is_none() -> None:
    assert decode(b"") is None


@pytest.mark.parametrize("raw", [b"\xff", b"\x12\x05ab", b"\x5a\x02\x08\x63\x12\x00"])
def test_what_is_no_message_is_an_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(raw)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(raw)
