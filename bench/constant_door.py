"""What gRPC alone costs: ``python -m bench.constant_door <port> <address>:<port>``.

Answers each message of an Envoy with buffered bodies by bytes that were made beforehand, and thinks
about nothing. It stands where a picker stands.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from promptprefix_router.gateway.ext_proc_codec import encode
from promptprefix_router.gateway.ext_proc_events import (
    RequestBodyAnswer,
    RequestHeadAnswer,
    ResponseHeadAnswer,
    Steering,
)
from promptprefix_router.gateway.health import EXTERNAL_PROCESSOR
from promptprefix_router.gateway.tls import self_signed

REQUEST_HEADERS, REQUEST_BODY = b"\x12", b"\x22"
"""How a message begins: its first field's number and type."""


async def serve(port: int, destination: str) -> None:
    """Serve until the process ends."""
    head = encode(RequestHeadAnswer())
    body = encode(RequestBodyAnswer(Steering(destination)))
    response = encode(ResponseHeadAnswer("warm;match=fingerprint"))

    async def process(_requests: object, context: Any) -> None:
        while (raw := await context.read()) is not grpc.aio.EOF:
            first = raw[:1]
            if first == REQUEST_HEADERS:
                await context.write(head)
            else:
                await context.write(body if first == REQUEST_BODY else response)

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(EXTERNAL_PROCESSOR, {"Process": handler}),)
    )
    credentials = self_signed(datetime.datetime.now(datetime.UTC))
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
