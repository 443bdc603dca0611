"""Where requests go on the real Envoy: what was sent where, and how busy pods are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from e2e.router.fake_engine import FakeEngine
from e2e.router.samples import DECISION, DESTINATION, ask, declared, pool, prefix, undeclared
from e2e.router.stack import RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def held(
    stack: RouterStack, engine: FakeEngine, count: int, send: Callable[[], Awaitable[object]]
) -> AsyncIterator[None]:
    """Have so many requests active on ``engine``."""
    engine.hold.clear()
    tasks = [asyncio.ensure_future(send()) for _ in range(count)]

    async def arrived() -> bool:
        return engine.active == count

    await until(arrived, f"{count} requests are active on {engine.name}")
    await stack.settled()
    yield
    engine.hold.set()
    await asyncio.gather(*tasks)
    await stack.settled()


def engine_of(stack: RouterStack, name: str) -> FakeEngine:
    """Return an engine by its name."""
    return next(engine for engine in stack.engines if engine.name == name)


async def test_an_undeclared_prompt_goes_where_it_was_sent(stack: RouterStack) -> None:
    await stack.settled()
    text = "Some long text that nobody declared. " * 100
    first = await ask(stack, undeclared(text))
    assert first.headers[DECISION] == "hashed;match=undeclared"
    for number in range(4):
        await stack.settled()
        again = await ask(stack, undeclared(f"{text} {number}"))
        assert again.headers[DECISION] == "seen;match=undeclared"
        assert again.json() == first.json()
    # What a client writes there counts for nothing: the router takes it out.
    salted = await ask(stack, {**undeclared(text), "cache_salt": "another"})
    assert salted.headers[DECISION] == "seen;match=undeclared"
    assert await stack.metric("promptprefix_router_history_chunks") >= 3
    mode = "promptprefix_router_undeclared_mode"
    assert await stack.metric(mode, mode="approximate") == 1
    assert await stack.metric(mode, mode="least-load") == 0


async def test_an_engine_that_restarted_has_seen_nothing(stack: RouterStack) -> None:
    text = "Another long text that nobody declared. " * 100
    await stack.settled()
    await ask(stack, undeclared(text))
    before = pool(stack.engines, warm="b")
    await stack.publish((prefix(),), before)
    assert (await ask(stack, undeclared(text))).headers[DECISION] == "seen;match=undeclared"
    await stack.publish(
        (prefix(),), tuple(each.model_copy(update={"epoch": "second"}) for each in before)
    )

    async def forgotten() -> bool:
        response = await ask(stack, undeclared(text))
        return response.headers[DECISION] == "hashed;match=undeclared"

    await until(forgotten, "what was sent to the engines before is forgotten")


@pytest.mark.parametrize(("tokens", "count", "reason"), [(16, 9, "queue"), (50_000, 14, "bound")])
async def test_a_request_spills_with_its_reason(
    stack: RouterStack, tokens: int, count: int, reason: str
) -> None:
    wanted = prefix().model_copy(update={"tokens": tokens})
    await stack.publish((wanted,), pool(stack.engines, warm="b"))
    before = await stack.metric("promptprefix_router_spills_total", reason=reason)
    engine = engine_of(stack, "b")
    to_b = pool([engine], warm="b")
    await stack.publish((wanted,), to_b)
    async with held(stack, engine, count, lambda: ask(stack, declared())):
        await stack.publish((wanted,), pool(stack.engines, warm="b"))
        await stack.settled()
        response = await ask(stack, declared())
        assert response.headers[DECISION] == f"spill;match=fingerprint;reason={reason}"
        assert response.json()["engine"] != "b"
    after = await stack.metric("promptprefix_router_spills_total", reason=reason)
    assert after == before + 1


async def test_requests_of_others_count_as_load(stack: RouterStack) -> None:
    for name in "ac":
        engine_of(stack, name).others = 30

    async def heard() -> bool:
        return await stack.metric("promptprefix_router_foreign_requests") == 60

    await until(heard, "the picker knows of the others' requests")
    responses = [await ask(stack, undeclared()) for _ in range(4)]
    assert {response.json()["engine"] for response in responses} == {"b"}
    for engine in stack.engines:
        engine.others = 0

    async def gone() -> bool:
        return await stack.metric("promptprefix_router_foreign_requests") == 0

    await until(gone, "the picker knows that they are gone")
    assert await stack.metric("promptprefix_router_engine_readings_total", result="failed") == 0


async def test_the_next_best_pods_are_named(stack: RouterStack) -> None:
    await ask(stack, declared())
    seen = engine_of(stack, "b").seen[-1]
    places = seen.headers[DESTINATION].split(",")
    assert places[0] == f"127.0.0.1:{engine_of(stack, 'b').port}"
    assert set(places) == {f"127.0.0.1:{engine.port}" for engine in stack.engines}


async def test_a_pick_that_refuses_is_retried_on_the_next_best(stack: RouterStack) -> None:
    """Nothing was sent: the connection was refused."""
    await stack.settled()
    await stack.publish((prefix(),), pool(stack.engines, warm="b"))
    engine = engine_of(stack, "b")
    await engine.stop()
    try:
        response = await ask(stack, declared())
    finally:
        await engine.start()
    assert response.status_code == 200
    served = response.json()["engine"]
    (seen,) = engine_of(stack, served).seen
    assert seen.headers[DESTINATION].split(",")[1] == f"127.0.0.1:{engine_of(stack, served).port}"
