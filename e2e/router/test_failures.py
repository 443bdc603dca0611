"""The real router while its neighbours are away, broken or gone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import pytest

from e2e.router.samples import (
    DECISION,
    ask,
    counts,
    declared,
    pool,
    prefix,
    undeclared,
)
from e2e.router.stack import DECISION_TIMEOUT_MS, RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_requests_survive_the_picker(stack: RouterStack) -> None:
    """Stopped under load and started again: no failed request, and Envoy counts the bypass."""
    bypassed = "envoy_http_ext_authz_failure_mode_allowed"
    assert await stack.stat(bypassed) == 0
    answers: list[tuple[int, str]] = []
    stopping = asyncio.Event()

    async def load() -> None:
        while not stopping.is_set():
            response = await ask(stack, declared())
            answers.append((response.status_code, response.text if response.is_error else ""))

    async def bypasses() -> bool:
        return await stack.stat(bypassed) >= 20

    async def routed_again() -> bool:
        response = await ask(stack, declared())
        told = response.headers.get(DECISION), response.json()["engine"]
        return told == ("warm;match=fingerprint", "b")

    tasks = [asyncio.create_task(load()) for _ in range(8)]
    await until(_more_than(answers, 40), "load runs")
    await stack.stop_picker()
    await until(bypasses, "Envoy counts bypasses")
    during = await ask(stack, declared())
    assert DECISION not in during.headers
    assert sum(engine.seen != [] for engine in stack.engines) > 1
    await stack.start_picker()
    await until(routed_again, "the new picker routes to the holder")
    stopping.set()
    await asyncio.gather(*tasks)
    assert set(answers) == {(200, "")}
    assert len(answers) > 60


def _more_than(items: Sequence[object], count: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return len(items) > count

    return reached


async def test_a_picker_that_hangs_delays_by_the_timeout(stack: RouterStack) -> None:
    assert stack.picker is not None
    stack.picker.send_signal(signal.SIGSTOP)
    try:
        response = await ask(stack, declared())
    finally:
        stack.picker.send_signal(signal.SIGCONT)
    assert response.status_code == 200
    assert DECISION not in response.headers
    assert 1 < response.elapsed.total_seconds() * 1000 / DECISION_TIMEOUT_MS < 5


async def test_a_removed_endpoint_gets_nothing(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines[:2], warm="b"))
    for _ in range(9):
        await ask(stack, undeclared())
    assert counts(stack)["c"] == 0


@pytest.mark.parametrize("picker", ["up", "down"])
async def test_an_endpoint_that_is_not_ready_gets_nothing(stack: RouterStack, picker: str) -> None:
    """Not even if it is warm, or most of the pool is not ready and nobody picks."""
    await stack.publish((prefix(),), pool(stack.engines, warm="b", not_ready="bc"))
    if picker == "down":
        await stack.stop_picker()
    for _ in range(6):
        assert (await ask(stack, declared())).json() == {"engine": "a"}
    if picker == "down":
        await stack.start_picker()


async def test_a_dead_pod_costs_no_request(stack: RouterStack) -> None:
    """The picked pod is gone, and nobody knows yet: Envoy takes another."""
    _, b, _ = stack.engines
    await b.stop()
    try:
        responses = [await ask(stack, declared()) for _ in range(5)]
        assert {r.status_code for r in responses} == {200}
        assert counts(stack)["b"] == 0
    finally:
        await b.start()


async def test_an_unhealthy_engine_is_avoided(stack: RouterStack) -> None:
    stack.engines[1].healthy = False

    async def avoided() -> bool:
        response = await ask(stack, declared())
        return "cold;match=fingerprint" in response.headers.get_list(DECISION)

    await until(avoided, "the warm engine is avoided")


async def test_the_last_routes_stay_when_the_operator_is_away(stack: RouterStack) -> None:
    """Also over a restart of the picker: Envoy keeps the endpoints of the file."""
    await stack.fake_control.stop()
    try:
        assert (await ask(stack, declared())).json() == {"engine": "b"}
        await stack.stop_picker()
        await stack.start_picker()
        response = await ask(stack, declared())
        assert response.status_code == 200
        assert response.headers[DECISION].startswith("unrouted")
        assert len(await stack.pool()) == 3
    finally:
        await stack.fake_control.start()


async def test_health_and_models_need_no_picker(stack: RouterStack) -> None:
    await stack.stop_picker()
    assert (await stack.client.get(f"{stack.url}/health")).text == "ok\n"
    assert (await stack.client.get(f"{stack.url}/v1/models")).status_code == 200
    await stack.start_picker()


async def test_an_empty_pool_is_a_clear_error(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines, not_ready="abc"))
    response = await ask(stack, declared())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_healthy_upstream"
