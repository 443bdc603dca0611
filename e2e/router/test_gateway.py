"""The real picker behind a real Envoy that is set up as a gateway with InferencePool."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from e2e.router.fake_engine import FakeEngine
from e2e.router.gateway_envoy import SUBSET_HEADER
from e2e.router.gateway_stack import GatewayStack
from e2e.router.samples import CHAT, DECISION, DESTINATION, declared, pool, prefix, undeclared
from e2e.router.stack import MODEL
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

EVERY_WAY = ("buffered", "stubborn", "partial", "duplex", "strict", "streamed")


async def ask(gateway: GatewayStack, way: str, body: object, **headers: str) -> httpx.Response:
    """Send a chat completion through the listener ``way``."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.client.post(f"{gateway.url(way)}{CHAT}", json=body, headers=names)


def place(engine: FakeEngine) -> str:
    """Return the address of ``engine``."""
    return f"127.0.0.1:{engine.port}"


def counts(gateway: GatewayStack) -> dict[str, int]:
    """Return how many requests each engine saw."""
    return {engine.name: len(engine.seen) for engine in gateway.engines}


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_only_the_subset_is_picked(gateway: GatewayStack, way: str) -> None:
    a, b, c = gateway.engines
    for hint, names in ((place(c), "c"), (f"{place(a)}, {place(c)}", "ac"), (place(b), "b")):
        response = await ask(gateway, way, undeclared(), **{SUBSET_HEADER: hint})
        assert response.status_code == 200
        assert response.json()["engine"] in names
    response = await ask(gateway, way, undeclared(), **{SUBSET_HEADER: "127.0.0.1:1"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_ready_endpoint"


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_without_a_ready_endpoint_the_answer_is_503(gateway: GatewayStack, way: str) -> None:
    await gateway.publish((prefix(),), pool(gateway.engines, not_ready="abc"))
    response = await ask(gateway, way, declared())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_ready_endpoint"
    assert counts(gateway) == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_request_without_a_body_is_answered(gateway: GatewayStack, way: str) -> None:
    response = await gateway.client.get(f"{gateway.url(way)}/v1/models")
    assert response.status_code == 200
    assert DECISION in response.headers


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_streams_pass_chunk_by_chunk(gateway: GatewayStack, way: str) -> None:
    for engine in gateway.engines:
        engine.hold.clear()
    url = f"{gateway.url(way)}{CHAT}"
    headers = {"x-test-stream": "1"}
    async with gateway.client.stream("POST", url, json=declared(), headers=headers) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data: first\n\n"
        for engine in gateway.engines:
            engine.hold.set()
        assert b"".join([chunk async for chunk in chunks]) == b"data: last\n\n"


@pytest.mark.parametrize("way", ["duplex", "strict"])
async def test_large_bodies_pass_through_a_small_picker(gateway: GatewayStack, way: str) -> None:
    start = json.dumps({"model": MODEL, "messages": []})[:-1].encode() + b', "pad": "'
    body = start + b"x" * (50 * 1024 * 1024) + b'"}'
    response = await gateway.client.post(f"{gateway.url(way)}{CHAT}", content=body)
    assert response.headers[DECISION].endswith("match=partial")
    (seen,) = [seen for engine in gateway.engines for seen in engine.seen]
    assert (seen.size, seen.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert await gateway.metric("process_resident_memory_bytes") < 200 * 1024 * 1024
    assert await gateway.metric("promptprefix_router_gateway_held_bytes") == 0


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_body_in_many_pieces_arrives_whole(gateway: GatewayStack, way: str) -> None:
    body = json.dumps(declared("é" * 500)).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    response = await gateway.client.post(f"{gateway.url(way)}{CHAT}", content=pieces())
    assert response.status_code == 200
    (seen,) = [seen for engine in gateway.engines for seen in engine.seen]
    assert seen.body == body
    if way != "streamed":
        assert response.headers[DECISION] == "warm;match=fingerprint"


async def test_a_body_that_the_gateway_does_not_take_is_413(gateway: GatewayStack) -> None:
    response = await ask(gateway, "buffered", undeclared("x" * 9 * 1024 * 1024))
    assert response.status_code == 413


@pytest.mark.parametrize("way", ["buffered", "strict"])
async def test_clients_that_leave_leave_nothing_behind(gateway: GatewayStack, way: str) -> None:
    for number in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.ports[way])
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        writer.write(head.encode() + b"x" * number * 50)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def nothing_left() -> bool:
        return (
            await gateway.metric("promptprefix_router_gateway_open_exchanges") == 0
            and await gateway.metric("promptprefix_router_gateway_held_bytes") == 0
        )

    await until(nothing_left, "no exchange is open")
    assert (await ask(gateway, way, declared())).json() == {"engine": "b"}


@pytest.mark.parametrize("way", ["buffered", "strict"])
async def test_requests_spread_by_what_is_open(gateway: GatewayStack, way: str) -> None:
    for engine in gateway.engines:
        engine.hold.clear()
    tasks = [asyncio.create_task(ask(gateway, way, undeclared(str(i)))) for i in range(9)]

    async def all_arrived() -> bool:
        return sum(engine.active for engine in gateway.engines) == 9

    await until(all_arrived, "nine requests are active")
    assert min(counts(gateway).values()) >= 2
    for engine in gateway.engines:
        engine.hold.set()
    assert {(await task).status_code for task in tasks} == {200}


@pytest.mark.parametrize("way", ["buffered", "duplex"])
async def test_a_dead_pod_costs_no_request(gateway: GatewayStack, way: str) -> None:
    """The picked pod is gone, and nobody knows yet: the gateway takes another."""
    _, b, _ = gateway.engines
    await b.stop()
    try:
        responses = [await ask(gateway, way, declared()) for _ in range(5)]
        assert {response.status_code for response in responses} == {200}
        assert counts(gateway)["b"] == 0
    finally:
        await b.start()


async def test_without_the_picker_the_failure_mode_decides(gateway: GatewayStack) -> None:
    """Open: any engine of the pool, and a forged destination can't leave it. Closed: an error."""
    outsider = await FakeEngine("outsider").start()
    await gateway.stop_picker()
    try:
        forged = {DESTINATION: place(outsider)}
        for headers in ({}, forged):
            for _ in range(6):
                response = await ask(gateway, "open", declared(), **headers)
                assert response.status_code == 200
                assert DECISION not in response.headers
        for way in ("buffered", "strict"):
            assert (await ask(gateway, way, declared(), **forged)).status_code >= 500
    finally:
        await gateway.start_picker()
        await outsider.stop()
    assert outsider.seen == []
    assert sum(engine.seen != [] for engine in gateway.engines) > 1
    assert (await ask(gateway, "open", declared())).headers[DECISION] == "warm;match=fingerprint"


@pytest.mark.parametrize("way", ["buffered", "open"])
async def test_a_stopping_picker_cuts_no_stream(gateway: GatewayStack, way: str) -> None:
    """A response that began goes on when the picker that picked it is gone."""
    engine = gateway.engines[1]
    engine.hold.clear()
    url = f"{gateway.url(way)}{CHAT}"
    headers = {"x-test-stream": "1"}
    async with gateway.client.stream("POST", url, json=declared(), headers=headers) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data: first\n\n"
        await gateway.stop_picker()
        engine.hold.set()
        assert b"".join([chunk async for chunk in chunks]) == b"data: last\n\n"
    await gateway.start_picker()


async def test_a_picker_that_stops_before_the_response_costs_no_request(
    gateway: GatewayStack,
) -> None:
    engine = gateway.engines[1]
    engine.hold.clear()
    task = asyncio.create_task(ask(gateway, "buffered", declared()))

    async def arrived() -> bool:
        return engine.active == 1

    await until(arrived, "the request is active")
    await gateway.stop_picker()
    engine.hold.set()
    response = await task
    await gateway.start_picker()
    assert response.status_code == 200
    assert response.json() == {"engine": "b"}


async def test_idle_the_picker_is_small(gateway: GatewayStack) -> None:
    await gateway.stop_picker()
    await gateway.start_picker()
    for number in range(50):
        await ask(gateway, "buffered", declared(f"{number}" * 1000))
    assert await gateway.metric("process_resident_memory_bytes") < 140 * 1024 * 1024
