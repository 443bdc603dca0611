"""Requests of every API through picker and Envoy: matched, and passed on byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.router.samples import DECISION, PAYLOAD, declared
from e2e.router.stack import MODEL, RouterStack

pytestmark = pytest.mark.asyncio(loop_scope="package")

TOOL = json.loads(PAYLOAD.toolDefinitions)[0]["function"]
USER = {"role": "user", "content": "hello"}
UNKNOWN = {"unknown": {"b": 1.0, "a": [None]}}


def message(**changes: Any) -> dict[str, Any]:
    tools = [{"name": "lookup", "input_schema": TOOL["parameters"]}]
    return {"model": MODEL, "system": PAYLOAD.system, "messages": [USER], "tools": tools, **changes}


def response(**changes: Any) -> dict[str, Any]:
    tools = [{"type": "function", **TOOL}]
    body = {"model": MODEL, "instructions": PAYLOAD.system, "input": "hello", "tools": tools}
    return {**body, **changes}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", declared()),
        ("/v1/messages", message()),
        ("/v1/messages?beta=true", message()),
        ("/v1/responses", response()),
        ("/v1/responses", response(input=[USER])),
    ],
)
async def test_a_declared_request(stack: RouterStack, path: str, body: dict[str, Any]) -> None:
    content = json.dumps({**body, **UNKNOWN}, indent=3).encode()
    answer = await stack.client.post(f"{stack.url}{path}", content=content)
    assert answer.headers[DECISION] == "warm;match=fingerprint"
    (seen,) = stack.engines[1].seen
    assert (seen.path, seen.body) == (path, content)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": PAYLOAD.system}),
        ("/v1/messages", message(tools=[{"name": "lookup", "input_schema": {}}])),
        ("/v1/messages", message(messages=[USER, {"role": "system", "content": "Hm."}])),
        ("/v1/messages/count_tokens", message()),
        ("/v1/responses", response(tools=[{"type": "web_search"}])),
        ("/v1/responses", response(previous_response_id="resp_1")),
    ],
)
async def test_an_undeclared_request(stack: RouterStack, path: str, body: dict[str, Any]) -> None:
    answer = await stack.client.post(f"{stack.url}{path}", json=body)
    assert answer.headers[DECISION] == "least-loaded;match=undeclared"
