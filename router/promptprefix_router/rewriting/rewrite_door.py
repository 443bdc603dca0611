"""The standalone door's second part: Envoy hands over the bodies that the picker wants changed.

Only requests that bear the picker's mark come here (`envoy.rewrite_filter`), over gRPC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from promptprefix_router.decision import TOO_LONG_FOR_SALT, UNREADABLE_FOR_SALT, Refusal
from promptprefix_router.gateway.ext_proc_messages import (
    Message,
    ProcessingRequest,
    ProcessingResponse,
)
from promptprefix_router.header_names import PREFIX_HEADER
from promptprefix_router.matching.matcher import Question
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.rewriting.rewriter import TooLongError, rewritten
from promptprefix_router.rewriting.salt_field import UnreadableError

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
SLACK_BYTES = 65_536
"""What a message has beside the body."""

_OVERWRITE = 2
"""``OVERWRITE_IF_EXISTS_OR_ADD`` of Envoy's ``HeaderAppendAction``."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


@dataclass(frozen=True, slots=True)
class _Head:
    """What is read of a request's headers."""

    path: str = ""
    prefix_name: str | None = None
    tenant: str = ""
    has_length: bool = False


class RewriteDoor:
    """Listens from `start` until `stop`. Bodies have at most ``max_body_bytes``, new ones too.

    ``tenant_header`` names the header that says the tenant; empty without one. ``shared``: other
    processes listen on the same port.
    """

    def __init__(
        self,
        picker: Picker,
        metrics: RouterMetrics,
        max_body_bytes: int,
        tenant_header: str = "",
        *,
        shared: bool = False,
    ) -> None:
        self._picker = picker
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._tenant_header = tenant_header
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", max_body_bytes + SLACK_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(shared)),
            )
        )

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError` if the port can't be had."""

        async def process(_requests: object, context: _Context) -> None:
            await self._process(context)

        handler = grpc.stream_stream_rpc_method_handler(process)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),)
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"can't listen on {address}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """End when the bodies that are here have been answered, or after ``grace_s``."""
        await self._server.stop(grace_s)

    async def _process(self, context: _Context) -> None:
        head = _Head()
        while True:
            raw: Any = await context.read()
            if raw is grpc.aio.EOF:
                return
            try:
                message = ProcessingRequest.FromString(raw)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
            if message.HasField("request_headers"):
                head = _head(message, self._tenant_header)
                await context.write(ProcessingResponse(request_headers={}).SerializeToString())
            elif message.HasField("request_body"):
                routes = self._picker.routes
                if routes.revision is None or routes.lacks_salt(head.tenant):
                    # Another worker that knows which salt is due, or another table, decided.
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "no table with the salt")
                answer = self._answer(head, message.request_body.body)
                await context.write(answer.SerializeToString())

    def _answer(self, head: _Head, body: bytes) -> Message:
        question = Question(head.path, body, prefix_name=head.prefix_name, tenant=head.tenant)
        try:
            rewriting = self._picker.rewriting(question)
        except UnreadableError:
            return _refused(UNREADABLE_FOR_SALT)
        except TooLongError:
            return _refused(TOO_LONG_FOR_SALT)
        if rewriting is None:
            return ProcessingResponse(request_body={})
        changed = rewritten(rewriting, body, self._max_body_bytes, self._metrics.rewrote)
        if changed is None:
            return ProcessingResponse(request_body={})
        return _changed(changed, head.has_length)


def _head(message: Message, tenant_header: str) -> _Head:
    found: dict[str, str] = {}
    for header in message.request_headers.headers.headers:
        # The first of equal names counts, as in the other part of the door.
        found.setdefault(header.key, _value(header))
    return _Head(
        path=found.get(":path", "").partition("?")[0],
        prefix_name=found.get(PREFIX_HEADER) or None,
        tenant=found.get(tenant_header, "") if tenant_header else "",
        has_length="content-length" in found,
    )


def _value(header: Message) -> str:
    return (header.raw_value or header.value).decode("latin-1")  # type: ignore[no-any-return]


def _changed(body: bytes, has_length: bool) -> Message:
    """Return the answer; Envoy refuses a body that contradicts the length that was announced."""
    change: dict[str, object] = {"body_mutation": {"body": body}}
    if has_length:
        length = {
            "header": {"key": "content-length", "raw_value": b"%d" % len(body)},
            "append_action": _OVERWRITE,
        }
        change["header_mutation"] = {"set_headers": [length]}
    return ProcessingResponse(request_body={"response": change})


def _refused(refusal: Refusal) -> Message:
    json = {"header": {"key": "content-type", "raw_value": b"application/json"}}
    return ProcessingResponse(
        immediate_response={
            "status": {"code": refusal.status},
            "headers": {"set_headers": [{**json, "append_action": _OVERWRITE}]},
            "body": refusal.body,
            "details": "promptprefix",
        }
    )
