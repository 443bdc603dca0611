"""Envoy's external-processing messages, read into events and written from answers."""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.message import DecodeError

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
    Steering,
)
from promptprefix_router.gateway.ext_proc_exchange import ProtocolError
from promptprefix_router.gateway.ext_proc_messages import (
    Message,
    ProcessingRequest,
    ProcessingResponse,
)
from promptprefix_router.header_names import DECISION_HEADER, DESTINATION_HEADER, PREFIX_HEADER
from promptprefix_router.shedding import NO_SHEDDING, Shedding

DESTINATION_NAMESPACE = "envoy.lb"
LENGTH_HEADER = "content-length"
SERVED_KEY = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"

_OVERWRITE = 2
"""``OVERWRITE_IF_EXISTS_OR_ADD`` of Envoy's ``HeaderAppendAction``."""


def decode(raw: bytes, tenant_header: str = "", shedding: Shedding = NO_SHEDDING) -> Event | None:
    """Read a ``ProcessingRequest``; None for one that asks nothing. Raises `ProtocolError`.

    ``tenant_header`` names the header that says the tenant; empty without one.
    """
    try:
        message = ProcessingRequest.FromString(raw)
    except DecodeError as error:
        raise ProtocolError("not a ProcessingRequest") from error
    # A message of one field at a time: the protocol's oneof.
    if message.HasField("request_body"):
        body = message.request_body
        return RequestBody(body.body, body.end_of_stream)
    if message.HasField("response_body"):
        body = message.response_body
        return ResponseBody(body.body, body.end_of_stream)
    if message.HasField("request_headers"):
        return _request_head(message, tenant_header, shedding)
    if message.HasField("response_headers"):
        return ResponseHead(_text(_metadata(message, DESTINATION_NAMESPACE, SERVED_KEY)))
    if message.HasField("request_trailers"):
        return RequestTrailers()
    return ResponseTrailers() if message.HasField("response_trailers") else None


def encode(answer: Answer) -> bytes:
    """Write a ``ProcessingResponse``."""
    return _known(answer) if _recurs(answer) else _written(answer)


def _recurs(answer: Answer) -> bool:
    """Return whether ``answer`` is of a few: nothing of a client's is in it."""
    if isinstance(answer, RequestPiece | ResponsePiece):
        return False
    if isinstance(answer, RequestBodyAnswer) and answer.body is not None:
        return False
    if isinstance(answer, RequestHeadAnswer | RequestBodyAnswer):
        return answer.steering is None or not answer.steering.forged
    return True


def _written(answer: Answer) -> bytes:
    return _response(answer).SerializeToString()  # type: ignore[no-any-return]


_known = lru_cache(maxsize=1024)(_written)


def _request_head(message: Message, tenant_header: str, shedding: Shedding) -> RequestHead:
    path, name, has_length, forged = "", None, False, []
    tenants, sheddable = [], False
    for header in message.request_headers.headers.headers:
        key = header.key
        if key == ":path":
            path = _value(header).partition("?")[0]
        elif key == PREFIX_HEADER:
            # The first of equal names counts, as in the other door.
            name = name or _value(header)
        elif key == tenant_header:
            tenants.append(_value(header))
        elif key == shedding.header:
            sheddable = sheddable or shedding.covers(_value(header))
        elif key == LENGTH_HEADER:
            has_length = True
        elif key.startswith(DESTINATION_HEADER) and key != DESTINATION_HEADER:
            forged.append(key)
    return RequestHead(
        path=path,
        prefix_name=name or None,
        tenant=",".join(tenants),
        sheddable=sheddable,
        end_of_stream=message.request_headers.end_of_stream,
        modes=_modes(message),
        subset=_subset(message),
        forged=tuple(forged),
        has_length=has_length,
    )


def _value(header: Message) -> str:
    return (header.raw_value or header.value).decode("latin-1")  # type: ignore[no-any-return]


def _modes(message: Message) -> BodyModes | None:
    if not message.HasField("protocol_config"):
        return None
    config = message.protocol_config
    try:
        return BodyModes(BodyMode(config.request_body_mode), BodyMode(config.response_body_mode))
    except ValueError as error:
        raise ProtocolError("a body mode that is not known") from error


def _subset(message: Message) -> frozenset[str] | None:
    hint = _metadata(message, SUBSET_NAMESPACE, SUBSET_KEY)
    if hint is None:
        return None
    values = [hint, *hint.list_value.values]
    parts = (part.strip() for value in values for part in value.string_value.split(","))
    return frozenset(part for part in parts if part)


def _metadata(message: Message, namespace: str, key: str) -> Message | None:
    """Return a value of the gateway's metadata; reading must not add what is absent."""
    spaces = message.metadata_context.filter_metadata
    if namespace not in spaces or key not in spaces[namespace].fields:
        return None
    return spaces[namespace].fields[key]


def _text(value: Message | None) -> str | None:
    return (value.string_value or None) if value is not None else None


def _response(answer: Answer) -> Message:
    if isinstance(answer, RequestPiece):
        return ProcessingResponse(request_body={"response": _piece(answer)})
    if isinstance(answer, ResponsePiece):
        return ProcessingResponse(response_body={"response": _piece(answer)})
    if isinstance(answer, RequestHeadAnswer):
        return _head_response(answer)
    if isinstance(answer, RequestBodyAnswer):
        return _body_response(answer)
    if isinstance(answer, ResponseHeadAnswer):
        return ProcessingResponse(response_headers=_telling(answer.decision))
    if isinstance(answer, ResponseBodyAnswer):
        return ProcessingResponse(response_body={})
    if isinstance(answer, RequestTrailersAnswer):
        return ProcessingResponse(request_trailers={})
    if isinstance(answer, Refused):
        return _refusal(answer)
    return ProcessingResponse(response_trailers={})


def _head_response(answer: RequestHeadAnswer) -> Message:
    response = ProcessingResponse(request_headers=_steered(answer.steering))
    if answer.modes is not None:
        response.mode_override.request_body_mode = answer.modes.request
        response.mode_override.response_body_mode = answer.modes.response
    return _with_destination(response, answer.steering)


def _body_response(answer: RequestBodyAnswer) -> Message:
    response = ProcessingResponse(request_body=_steered(answer.steering))
    if answer.body is not None:
        change = response.request_body.response
        change.body_mutation.body = answer.body
        if answer.tells_length:
            # A gateway refuses a body that contradicts the length that was announced.
            length = (LENGTH_HEADER, str(len(answer.body)))
            change.header_mutation.set_headers.add(**_set_headers(length)[0])
    return _with_destination(response, answer.steering)


def _with_destination(response: Message, steering: Steering | None) -> Message:
    if steering is not None:
        space = response.dynamic_metadata.fields[DESTINATION_NAMESPACE].struct_value
        space.fields[DESTINATION_HEADER].string_value = steering.destination
    return response


def _steered(steering: Steering | None) -> dict[str, object]:
    if steering is None:
        return {}
    mutation = {
        "set_headers": _set_headers((DESTINATION_HEADER, steering.destination)),
        "remove_headers": steering.forged,
    }
    return {"response": {"header_mutation": mutation}}


def _telling(decision: str | None) -> dict[str, object]:
    if decision is None:
        return {}
    mutation = {"set_headers": _set_headers((DECISION_HEADER, decision))}
    return {"response": {"header_mutation": mutation}}


def _refusal(answer: Refused) -> Message:
    headers = _set_headers(
        ("content-type", "application/json"), (DECISION_HEADER, answer.decision), *answer.headers
    )
    return ProcessingResponse(
        immediate_response={
            "status": {"code": answer.status},
            "headers": {"set_headers": headers},
            "body": answer.body,
            "details": "promptprefix",
        }
    )


def _set_headers(*headers: tuple[str, str]) -> list[dict[str, object]]:
    return [
        {
            "header": {"key": name, "raw_value": value.encode("latin-1")},
            "append_action": _OVERWRITE,
        }
        for name, value in headers
    ]


def _piece(piece: RequestPiece | ResponsePiece) -> dict[str, object]:
    given = {"body": piece.body, "end_of_stream": piece.end_of_stream}
    return {"body_mutation": {"streamed_response": given}}
