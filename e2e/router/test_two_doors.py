"""The same table of cases through both doors, each behind a real Envoy."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from e2e.router.cases import CASES, Case
from e2e.router.fake_engine import FakeEngine
from e2e.router.gateway_stack import GatewayStack
from e2e.router.samples import DECISION, DESTINATION
from e2e.router.stack import RouterStack

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
