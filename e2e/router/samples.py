"""Route tables and requests of the router's end-to-end tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from e2e.router.fake_engine import FakeEngine
from e2e.router.stack import MODEL, TENANT, RouterStack
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RouteEndpoint, RoutePrefix

PAYLOAD = Payload(
    systemInstructions="You are the triage desk.\nNever guess; ask. é",
    toolDefinitions='[{"type":"function","function":'
    '{"name":"lookup","parameters":{"type":"object","b":1.0,"a":2}}}]',
)
DIGEST = "d" * 64
VERSION = "11-22"
CHAT = "/v1/chat/completions"
DESTINATION = "x-gateway-destination-endpoint"
DECISION = "x-promptprefix-decision"


def prefix() -> RoutePrefix:
    """Return the declared prefix as the router knows it."""
    return RoutePrefix(
        id=VERSION,
        name="support-triage",
        tenant=TENANT,
        model=MODEL,
        fingerprint=payload_fingerprint(MODEL, PAYLOAD),
        token_digests=(DIGEST,),
    )


def pool(
    engines: Sequence[FakeEngine], warm: str = "", not_ready: str = ""
) -> tuple[RouteEndpoint, ...]:
    """Return endpoints for ``engines``; ``warm`` and ``not_ready`` hold their names."""
    return tuple(
        RouteEndpoint(
            pod_uid=f"uid-{engine.name}",
            pod=f"vllm-{engine.name}",
            namespace=TENANT,
            address="127.0.0.1",
            port=engine.port,
            models=(MODEL,),
            ready=engine.name not in not_ready,
            warm=(DIGEST,) if engine.name in warm else (),
        )
        for engine in engines
    )


def declared(user: str = "hello") -> dict[str, Any]:
    """Return a request with the declared prefix, written another way."""
    tools = json.loads(PAYLOAD.toolDefinitions)
    return {
        "tools": tools,
        "messages": [
            {"role": "system", "content": PAYLOAD.system.replace("\n", "\r\n")},
            {"role": "user", "content": user},
        ],
        "model": MODEL,
    }


def undeclared(user: str = "hello") -> dict[str, Any]:
    """Return a request without a declared prefix."""
    return {"model": MODEL, "messages": [{"role": "user", "content": user}]}


async def ask(stack: RouterStack, body: object, **headers: str) -> httpx.Response:
    """Send a chat completion."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await stack.client.post(f"{stack.url}{CHAT}", json=body, headers=names)


def counts(stack: RouterStack) -> dict[str, int]:
    """Return how many requests each engine saw."""
    return {engine.name: len(engine.seen) for engine in stack.engines}
