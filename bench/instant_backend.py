"""An engine that answers at once: ``python -m bench.instant_backend <address>:<port> …``.

It reads whole requests and says the same small chat completion to each, also to health checks and
to what the other routers ask of an engine. It is no HTTP server for anybody else: chunked bodies
are not understood.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import cast

import uvloop

MODEL = "bench/model"

_COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yes."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 2500, "completion_tokens": 2, "total_tokens": 2502},
    }
).encode()
_MODELS = json.dumps(
    {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}],
    }
).encode()
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


def _whole(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + _END + body


_COMPLETED = _whole(_COMPLETION)
_LISTED = _whole(_MODELS)


class InstantEngine(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        """Bytes of the body that are still to come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports have the methods of `asyncio.Transport` but not its type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request when its last byte has come."""
        if self._missing:
            rest = len(data) - self._missing
            if rest < 0:
                self._missing = -rest
                return
            data = data[self._missing :]
            self._missing = 0
            self._transport.write(_COMPLETED)
        data = self._head + data
        while data:
            end = data.find(_END)
            if end < 0:
                break
            head = data[:end].lower()
            start = end + len(_END)
            self._missing = max(0, start + _body_bytes(head) - len(data))
            if self._missing:
                data = b""
                break
            self._transport.write(_LISTED if head.startswith(b"get /v1/models") else _COMPLETED)
            data = data[start + _body_bytes(head) :]
        self._head = data


def _body_bytes(head: bytes) -> int:
    at = head.find(_LENGTH)
    return int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def serve(addresses: Sequence[str]) -> None:
    """Listen until the process is ended."""
    loop = asyncio.get_running_loop()
    for address in addresses:
        host, _, port = address.rpartition(":")
        await loop.create_server(InstantEngine, host, int(port), backlog=1024)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
