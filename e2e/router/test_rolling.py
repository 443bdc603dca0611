"""Restarts one after the other, under a load of streams whose clients retry nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.router.fake_engine import FakeEngine
from e2e.router.load_of_streams import StreamLoad
from e2e.router.samples import declared, pool, prefix, undeclared
from e2e.router.stack import RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

CLIENTS = 8
WAYS: list[tuple[Callable[[], dict[str, Any]], dict[str, str]]] = [
    (declared, {}),
    (undeclared, {"x-promptprefix": "support-triage"}),
]
by_body_and_by_header = pytest.mark.parametrize(("body", "headers"), WAYS, ids=["body", "header"])


@by_body_and_by_header
async def test_the_picker_restarts(
    stack: RouterStack, body: Callable[[], dict[str, Any]], headers: dict[str, str]
) -> None:
    load = StreamLoad(lambda: stack.url, body, headers)
    async with load.running(CLIENTS):
        await load.more(2 * CLIENTS)
        await stack.stop_picker()
        await load.more(2 * CLIENTS)
        await stack.start_picker()
        await load.more(2 * CLIENTS)
    assert load.lost == []


@by_body_and_by_header
async def test_engine_pods_restart(
    stack: RouterStack, body: Callable[[], dict[str, Any]], headers: dict[str, str]
) -> None:
    """A pod that leaves is first not ready; its streams end before it does."""
    load = StreamLoad(lambda: stack.url, body, headers)
    async with load.running(CLIENTS):
        for engine in stack.engines:
            await load.more(CLIENTS)
            await stack.publish((prefix(),), pool(stack.engines, warm="abc", not_ready=engine.name))

            await until(_left_alone(engine), f"{engine.name} has ended its streams")
            await engine.stop()
            await load.more(CLIENTS)
            await stack.publish(
                (prefix(),), pool([e for e in stack.engines if e is not engine], warm="abc")
            )
            await load.more(CLIENTS)
            await engine.start()
            await stack.publish((prefix(),), pool(stack.engines, warm="abc"))
        await load.more(2 * CLIENTS)
    assert load.lost == []


def _left_alone(engine: FakeEngine) -> Callable[[], Awaitable[bool]]:
    """Return whether ``engine`` has been idle for a while: what was on its way has arrived."""
    looks: list[tuple[int, int]] = []

    async def alone() -> bool:
        looks.append((engine.active, len(engine.seen)))
        return looks[-20:] == [(0, len(engine.seen))] * 20

    return alone


@pytest_asyncio.fixture(loop_scope="package")
async def twin(stack: RouterStack) -> AsyncIterator[RouterStack]:
    """Give a second router of the same pool."""
    folder = Path(stack.folder.parent) / "twin"
    twin = RouterStack(folder, stack.control, stack.engines)
    yield await twin.start()
    await twin.stop()


@pytest.mark.timeout(180)
@by_body_and_by_header
async def test_routers_restart(
    stack: RouterStack,
    twin: RouterStack,
    body: Callable[[], dict[str, Any]],
    headers: dict[str, str],
) -> None:
    """A router that leaves is taken out of the Service, drains as the chart has it, and ends."""
    serving = [stack, twin]
    turns = cycle(range(2))
    load = StreamLoad(lambda: serving[next(turns) % len(serving)].url, body, headers)
    async with load.running(CLIENTS):
        for router in (stack, twin):
            await load.more(2 * CLIENTS)
            serving.remove(router)
            await router.drain_envoy(1.0)
            assert await active_requests(router) == 0
            assert (await router.client.get(f"{router.url}/health")).status_code == 503
            await router.stop_envoy()
            await router.stop_picker()
            await load.more(2 * CLIENTS)
            await router.start_picker()
            await router.start_envoy()
            serving.append(router)
        await load.more(2 * CLIENTS)
    assert load.lost == []


async def active_requests(router: RouterStack) -> float:
    """Return the requests of clients that Envoy serves."""
    return await router.stat(
        "envoy_http_downstream_rq_active", envoy_http_conn_manager_prefix="ingress"
    )


async def test_a_draining_router_still_serves(twin: RouterStack) -> None:
    """Clients that came late are served, and told that their connection ends."""
    async with httpx.AsyncClient(trust_env=False) as client:
        before = await client.post(f"{twin.url}/v1/chat/completions", json=declared())
        await twin.drain_envoy(0)
        after = await client.post(f"{twin.url}/v1/chat/completions", json=declared())
    assert (before.status_code, before.headers.get("connection")) == (200, None)
    assert (after.status_code, after.headers.get("connection")) == (200, "close")
