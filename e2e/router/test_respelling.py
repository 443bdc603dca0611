"""Requests of a normalising prefix through picker and Envoy: what reaches the engine."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from e2e.router.fake_engine import SeenRequest
from e2e.router.samples import CHAT, DECISION, PAYLOAD, declared, pool, prefix, undeclared
from e2e.router.stack import RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMS = "envoy_http_ext_proc_streams_started"


async def publish(stack: RouterStack, **fields: Any) -> None:
    changes = {"content_digest": PAYLOAD.digest, "normalize": True, **fields}
    stack.fake_control.contents = {PAYLOAD.digest: PAYLOAD}
    await stack.publish((prefix().model_copy(update=changes),), pool(stack.engines, warm="b"))

    async def read() -> bool:
        return await stack.metric("promptprefix_router_texts", state="kept") == 1

    await until(read, "the picker has read the declared text")


def spelled_otherwise(**more: Any) -> bytes:
    text = unicodedata.normalize("NFD", PAYLOAD.system).replace("\n", "\r\n")
    turns = [{"role": "system", "content": text}, *declared()["messages"][1:]]
    return json.dumps({**more, **declared(), "messages": turns, "last": [1.50, "\u00e9"]}).encode()


def seen(stack: RouterStack) -> SeenRequest:
    (found,) = [each for engine in stack.engines for each in engine.seen]
    return found


async def test_only_the_immutable_part_changes(stack: RouterStack) -> None:
    await publish(stack)
    body = spelled_otherwise()
    answer = await stack.client.post(f"{stack.url}{CHAT}?a=b", content=body)
    assert answer.headers[DECISION] == "warm;match=fingerprint"
    request = seen(stack)
    assert request.path == f"{CHAT}?a=b"
    assert request.headers["content-length"] == str(len(request.body))
    assert "x-promptprefix-rewrite" not in request.headers
    assert json.loads(request.body)["messages"][0]["content"] == PAYLOAD.system
    assert request.body.endswith(body[body.index(b', "last"') :])


async def test_all_other_requests_pass_the_filter_untouched(stack: RouterStack) -> None:
    await publish(stack)
    before = await stack.stat(STREAMS)
    as_declared = {**declared(), "tools": json.loads(PAYLOAD.toolDefinitions)}
    as_declared["messages"][0]["content"] = PAYLOAD.system
    for body in (json.dumps(as_declared), json.dumps(undeclared()), "{", ""):
        assert (await stack.client.post(f"{stack.url}{CHAT}", content=body)).status_code == 200
        assert seen(stack).body == body.encode()
        for engine in stack.engines:
            engine.seen.clear()
    assert await stack.stat(STREAMS) == before


async def test_what_must_not_change_arrives_as_it_was_sent(stack: RouterStack) -> None:
    await publish(stack)
    long = spelled_otherwise(pad="x" * 1_100_000)
    assert (await stack.client.post(f"{stack.url}{CHAT}", content=long)).status_code == 200
    assert seen(stack).body == long


async def test_a_stream_comes_chunk_by_chunk(stack: RouterStack) -> None:
    await publish(stack)
    engine = stack.engines[1]
    engine.hold.clear()
    async with stack.client.stream(
        "POST", f"{stack.url}{CHAT}", content=spelled_otherwise(), headers={"x-test-stream": "1"}
    ) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data: first\n\n"
        engine.hold.set()
        assert b"".join([chunk async for chunk in chunks]) == b"data: last\n\n"
    assert json.loads(seen(stack).body)["messages"][0]["content"] == PAYLOAD.system


async def test_if_only_the_second_door_is_away_it_passes_as_it_is(stack: RouterStack) -> None:
    await stack.stop_picker()
    await stack.start_picker(REWRITE_PORT=stack.spare_port)
    try:
        await publish(stack)
        body = spelled_otherwise()
        answer = await stack.client.post(f"{stack.url}{CHAT}", content=body)
        assert answer.headers[DECISION] == "warm;match=fingerprint"
        assert seen(stack).body == body
    finally:
        await stack.stop_picker()
        await stack.start_picker()
