"""The same table of cases through both doors, each behind a real Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from e2e.router.cases import CASES, OVERLOAD_CASES, Case, OverloadCase
from e2e.router.fake_engine import FakeEngine
from e2e.router.gateway_stack import GatewayStack
from e2e.router.samples import CHAT, DECISION, DESTINATION, undeclared
from e2e.router.stack import SATURATED_AT, RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

WHOLE_BODY_WAYS = ("buffered", "stubborn", "partial", "duplex", "strict")
"""Listeners of the gateway that show bodies."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_standalone_door(stack: RouterStack, case: Case) -> None:
    await check(stack.client, stack.url, stack.engines, case)


@pytest.mark.parametrize("way", WHOLE_BODY_WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_gateway_door(gateway: GatewayStack, case: Case, way: str) -> None:
    await check(gateway.client, gateway.url(way), gateway.engines, case)


async def check(
    client: httpx.AsyncClient, url: str, engines: Sequence[FakeEngine], case: Case
) -> None:
    """Send the request of ``case`` and compare what came of it."""
    response = await client.post(f"{url}{case.path}", content=case.body, headers=case.headers)
    assert response.status_code == case.status, response.text
    if case.status != httpx.codes.OK:
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"]["code"] == "engine_command_refused"
        assert all(engine.seen == [] for engine in engines)
        return
    outcome, _, match = response.headers[DECISION].partition(";match=")
    assert match == case.match
    assert case.outcome in (None, outcome)
    (engine,) = [engine for engine in engines if engine.seen]
    assert response.json() == {"engine": engine.name}
    assert engine.name in case.engines
    (seen,) = engine.seen
    assert seen.body == case.body
    assert seen.path == case.path
    internal = {name for name in seen.headers if name.startswith(DESTINATION)}
    assert internal <= {DESTINATION}
    assert seen.headers.get(DESTINATION, "").split(",")[0] in ("", f"127.0.0.1:{engine.port}")


@pytest.mark.parametrize("case", OVERLOAD_CASES, ids=lambda case: case.name)
async def test_the_standalone_door_under_overload(stack: RouterStack, case: OverloadCase) -> None:
    async with saturated(stack.engines, lambda: stack.metric(FOREIGN)):
        await check_overload(stack.client, stack.url, case)


@pytest.mark.parametrize("way", WHOLE_BODY_WAYS)
async def test_the_gateway_door_under_overload(gateway: GatewayStack, way: str) -> None:
    async with saturated(gateway.engines, lambda: gateway.metric(FOREIGN)):
        for case in OVERLOAD_CASES:
            await check_overload(gateway.client, gateway.url(way), case)
        shed = await gateway.metric("promptprefix_router_decisions_total", outcome="shed")
        assert shed >= sum(case.status == SHED for case in OVERLOAD_CASES)


async def test_one_engine_with_room_is_enough(stack: RouterStack, gateway: GatewayStack) -> None:
    batch = {"x-gateway-inference-objective": "batch"}
    doors = (
        (stack.client, stack.url, stack.engines, lambda: stack.metric(FOREIGN)),
        (gateway.client, gateway.url("duplex"), gateway.engines, lambda: gateway.metric(FOREIGN)),
    )
    for client, url, engines, foreign in doors:
        async with saturated(engines[:2], foreign):
            answer = await client.post(f"{url}{CHAT}", json=undeclared(), headers=batch)
            assert answer.json() == {"engine": engines[2].name}


FOREIGN = "promptprefix_router_foreign_requests"
SHED = httpx.codes.TOO_MANY_REQUESTS


@asynccontextmanager
async def saturated(
    engines: Sequence[FakeEngine], foreign: Callable[[], Awaitable[float]]
) -> AsyncIterator[None]:
    """Let the engines have as many requests of others as saturate them, as the picker knows."""

    async def have(each: int) -> None:
        for engine in engines:
            engine.others = each

        async def known() -> bool:
            return await foreign() == each * len(engines)

        await until(known, f"the picker knows of {each} requests of others on each engine")

    # A request of ours that ends while an engine is read is taken for another one.
    await have(SATURATED_AT + 5)
    try:
        yield
    finally:
        await have(0)


async def check_overload(client: httpx.AsyncClient, url: str, case: OverloadCase) -> None:
    """Send the request of ``case`` and compare what came of it."""
    content = case.body or httpx.Request("POST", url, json=undeclared()).content
    headers = [("content-type", "application/json"), *case.headers]
    answer = await client.post(f"{url}{CHAT}", content=content, headers=headers)
    assert answer.status_code == case.status, (case.name, answer.text)
    if case.status != SHED:
        return
    assert answer.headers[DECISION] == f"shed;match={case.match}", case.name
    assert 2 <= int(answer.headers["retry-after"]) <= 5
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "saturated"
