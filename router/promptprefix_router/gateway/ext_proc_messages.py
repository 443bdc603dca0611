"""The part of Envoy's external-processing messages that the gateway door reads and writes.

Numbers and types are those of `envoy.service.ext_proc.v3` (Envoy 1.40); fields that stand here
under no name are skipped when read. The published Python package of all xDS messages is not used:
it brings top-level packages (`envoy`, `google`, `opentelemetry`, `validate`) that take the place of
others' packages of these names.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

Message: TypeAlias = Any
"""A protobuf message; its class is made at run time."""

_PACKAGE = "promptprefix.ext_proc"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    # An enumeration travels as an int32 does.
    "int32": _FIELD.TYPE_INT32,
    "string": _FIELD.TYPE_STRING,
}

# Message -> its fields: (number, name, type). "*" repeats; "=" is a map from strings.
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "HeaderValue": ((1, "key", "string"), (2, "value", "bytes"), (3, "raw_value", "bytes")),
    "HeaderMap": ((1, "headers", "*HeaderValue"),),
    "HttpHeaders": ((1, "headers", "HeaderMap"), (3, "end_of_stream", "bool")),
    "HttpBody": ((1, "body", "bytes"), (2, "end_of_stream", "bool")),
    "HttpTrailers": (),
    "Metadata": ((1, "filter_metadata", "=Struct"),),
    "ProtocolConfiguration": (
        (1, "request_body_mode", "int32"),
        (2, "response_body_mode", "int32"),
    ),
    "ProcessingRequest": (
        (2, "request_headers", "HttpHeaders"),
        (3, "response_headers", "HttpHeaders"),
        (4, "request_body", "HttpBody"),
        (5, "response_body", "HttpBody"),
        (6, "request_trailers", "HttpTrailers"),
        (7, "response_trailers", "HttpTrailers"),
        (8, "metadata_context", "Metadata"),
        (11, "protocol_config", "ProtocolConfiguration"),
    ),
    "HeaderValueOption": ((1, "header", "HeaderValue"), (3, "append_action", "int32")),
    "HeaderMutation": (
        (1, "set_headers", "*HeaderValueOption"),
        (2, "remove_headers", "*string"),
    ),
    "StreamedBodyResponse": ((1, "body", "bytes"), (2, "end_of_stream", "bool")),
    "BodyMutation": ((1, "body", "bytes"), (3, "streamed_response", "StreamedBodyResponse")),
    "CommonResponse": (
        (2, "header_mutation", "HeaderMutation"),
        (3, "body_mutation", "BodyMutation"),
    ),
    "HeadersResponse": ((1, "response", "CommonResponse"),),
    "BodyResponse": ((1, "response", "CommonResponse"),),
    "TrailersResponse": (),
    "HttpStatus": ((1, "code", "int32"),),
    "ImmediateResponse": (
        (1, "status", "HttpStatus"),
        (2, "headers", "HeaderMutation"),
        (3, "body", "bytes"),
        (5, "details", "string"),
    ),
    "ProcessingMode": (
        (3, "request_body_mode", "int32"),
        (4, "response_body_mode", "int32"),
    ),
    "ProcessingResponse": (
        (1, "request_headers", "HeadersResponse"),
        (2, "response_headers", "HeadersResponse"),
        (3, "request_body", "BodyResponse"),
        (4, "response_body", "BodyResponse"),
        (5, "request_trailers", "TrailersResponse"),
        (6, "response_trailers", "TrailersResponse"),
        (7, "immediate_response", "ImmediateResponse"),
        (8, "dynamic_metadata", "Struct"),
        (9, "mode_override", "ProcessingMode"),
    ),
}
_STRUCT = f".{struct_pb2.Struct.DESCRIPTOR.full_name}"


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="promptprefix/ext_proc.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[struct_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            if kind.startswith("="):
                kind = _add_map(message, field, kind[1:])
            _add_field(message, number, field, kind)
    return file


def _add_map(message: Message, field: str, kind: str) -> str:
    entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, 1, "key", "string")
    _add_field(entry, 2, "value", kind)
    return f"*{message.name}.{entry.name}"


def _add_field(message: Message, number: int, name: str, kind: str) -> None:
    many = kind.startswith("*")
    kind = kind.removeprefix("*")
    field = message.field.add(
        name=name,
        number=number,
        label=_FIELD.LABEL_REPEATED if many else _FIELD.LABEL_OPTIONAL,
        type=_SCALARS.get(kind, _FIELD.TYPE_MESSAGE),
    )
    if kind not in _SCALARS:
        field.type_name = _STRUCT if kind == "Struct" else f".{_PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_describe().SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("ProcessingRequest", "ProcessingResponse")
    }


_CLASSES = _classes()
ProcessingRequest: Message = _CLASSES["ProcessingRequest"]
ProcessingResponse: Message = _CLASSES["ProcessingResponse"]
