"""Requests that add a tail to a declared system text, through picker and Envoy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.router.samples import CHAT, DECISION, DIGEST, PAYLOAD, pool, prefix
from e2e.router.stack import MODEL, RouterStack
from e2e.router.test_apis import USER, message, response
from e2e.waiting import until
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RoutePrefix

pytestmark = pytest.mark.asyncio(loop_scope="package")

NOON = f"{PAYLOAD.system}\r\nIt is noon."
LONGER = PAYLOAD.model_copy(update={"systemInstructions": f"{PAYLOAD.system}\nNight shift."})


def known(payload: Payload, **changes: Any) -> RoutePrefix:
    fields = {
        "content_digest": payload.digest,
        "fingerprint": payload_fingerprint(MODEL, payload),
        "tokens": 32,
    }
    return prefix().model_copy(update={**fields, **changes})


async def publish(stack: RouterStack, *prefixes: RoutePrefix, texts: int) -> None:
    stack.fake_control.contents = {each.digest: each for each in (PAYLOAD, LONGER)}
    await stack.publish(prefixes, pool(stack.engines, warm="b"))

    async def read() -> bool:
        return await stack.metric("promptprefix_router_texts", state="kept") == texts

    await until(read, "the picker has read the declared texts")


def chat(system: str) -> dict[str, Any]:
    tools = json.loads(PAYLOAD.toolDefinitions)
    return {
        "model": MODEL,
        "messages": [{"role": "system", "content": system}, USER],
        "tools": tools,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(NOON)),
        ("/v1/messages", message(system=NOON)),
        ("/v1/responses", response(instructions=NOON)),
    ],
)
async def test_a_text_with_a_tail_goes_where_its_head_is_warm(
    stack: RouterStack, path: str, body: dict[str, Any]
) -> None:
    await publish(stack, known(PAYLOAD), texts=1)
    content = json.dumps(body, indent=1).encode()
    answer = await stack.client.post(f"{stack.url}{path}", content=content)
    assert answer.headers[DECISION] == "warm;match=head"
    (seen,) = stack.engines[1].seen
    assert seen.body == content


async def test_the_longest_head_counts_for_the_operator(stack: RouterStack) -> None:
    longer = known(LONGER, id="33-44", name="night", token_digests=("e" * 64,))
    await publish(stack, known(PAYLOAD), longer, texts=2)
    stack.fake_control.matches.clear()
    body = chat(f"{LONGER.system} Be quick.")
    answer = await stack.client.post(f"{stack.url}{CHAT}", json=body)
    assert answer.headers[DECISION].endswith("match=head")

    async def told() -> bool:
        return "33-44" in {match.id for match in stack.fake_control.matches}

    await until(told, "the match of the longer text is told")


async def test_a_text_that_left_the_table_matches_nothing(stack: RouterStack) -> None:
    await publish(stack, known(PAYLOAD), texts=1)
    await publish(stack, prefix(), texts=0)
    answer = await stack.client.post(f"{stack.url}{CHAT}", json=chat(NOON))
    assert answer.headers[DECISION].endswith("match=undeclared")
    answer = await stack.client.post(f"{stack.url}{CHAT}", json=chat(PAYLOAD.system))
    assert answer.headers[DECISION] == "warm;match=fingerprint", "known by its fingerprint"


async def test_a_text_that_cannot_be_read_leaves_the_rest_alone(stack: RouterStack) -> None:
    lost = known(PAYLOAD, content_digest="0" * 64, token_digests=(DIGEST,))
    name = "promptprefix_router_text_fetches_total"
    before = await stack.metric(name, result="refused")
    await publish(stack, lost, texts=0)

    async def refused() -> bool:
        return await stack.metric(name, result="refused") > before

    await until(refused, "the text was asked for")
    answer = await stack.client.post(f"{stack.url}{CHAT}", json=chat(PAYLOAD.system))
    assert answer.headers[DECISION] == "warm;match=fingerprint"
