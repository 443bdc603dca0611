"""One stack for all tests of the folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from e2e.router.gateway_stack import GatewayStack
from e2e.router.samples import pool, prefix
from e2e.router.stack import RouterStack, surroundings


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def whole_stack() -> AsyncIterator[RouterStack]:
    """Start everything once; Envoy runs as nobody and reads one folder."""
    async with surroundings() as (folder, control, engines):
        stack = RouterStack(folder / "envoy", control, engines)
        try:
            yield await stack.start()
        finally:
            await stack.stop()


@pytest_asyncio.fixture(loop_scope="package")
async def stack(whole_stack: RouterStack) -> AsyncIterator[RouterStack]:
    """Give the stack with its default table: three ready engines, ``b`` warm."""
    were_healthy = all(engine.healthy for engine in whole_stack.engines)
    for engine in whole_stack.engines:
        engine.seen.clear()
        engine.healthy = True
    await whole_stack.publish((prefix(),), pool(whole_stack.engines, warm="b"))
    if not were_healthy:
        # Envoy knows that they are again; the picker learns it with its next reading.
        await whole_stack.settled()
    yield whole_stack
    for engine in whole_stack.engines:
        engine.hold.set()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def whole_gateway() -> AsyncIterator[GatewayStack]:
    """Start a picker with its gateway door, and an Envoy that stands for a gateway."""
    async with surroundings() as (folder, control, engines):
        gateway = GatewayStack(folder, control, engines)
        try:
            yield await gateway.start()
        finally:
            await gateway.stop()


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(whole_gateway: GatewayStack) -> AsyncIterator[GatewayStack]:
    """Give the gateway with its default table: three ready engines, ``b`` warm."""
    for engine in whole_gateway.engines:
        engine.seen.clear()
    await whole_gateway.publish((prefix(),), pool(whole_gateway.engines, warm="b"))
    yield whole_gateway
    for engine in whole_gateway.engines:
        engine.hold.set()
