"""The demo's figures: one that would be good for a bad reason is not printed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from e2e.demo import measurements
from e2e.demo.measurements import Bench, Declared
from e2e.demo.report import Report
from e2e.demo.stand import DemoError, Engine, Stand

TOKENS = 1888


class World:
    """Engines and a router that answer every request with ``cached`` cached tokens."""

    def __init__(self) -> None:
        self.cached = 0
        self.own_tokens = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            name = "promptprefix_sidecar_own_prompt_tokens_computed_total"
            pinned = "promptprefix_sidecar_pinned_blocks"
            return httpx.Response(200, text=f"{name} {self.own_tokens}.0\n{pinned} 0.0\n")
        usage = {"prompt_tokens": TOKENS + 20}
        details = {"prompt_tokens_details": {"cached_tokens": self.cached}}
        event = json.dumps({"usage": usage | details})
        return httpx.Response(200, text=f"data: {event}\n\ndata: [DONE]\n\n")


class Deleting(Stand):
    """Takes every kubectl command."""

    def kubectl(self, *arguments: str, **_: Any) -> str:
        return ""


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def bench(world: World) -> AsyncIterator[Bench]:
    engines = tuple(Engine(f"p{i}", f"http://e{i}", f"http://s{i}") for i in range(2))
    stand = Deleting(("kubectl",), "http://router", "http://stats", engines)
    report = Report(figures={"prefix_tokens": TOKENS, "ttft_cold_ms": 1000.0})
    async with httpx.AsyncClient(transport=httpx.MockTransport(world.answer)) as client:
        yield Bench(stand, Declared.load(), client, report)


async def test_a_prefix_that_was_never_cached_did_not_get_lost(bench: Bench) -> None:
    with pytest.raises(DemoError, match="only 0 of 1888 tokens"):
        await measurements.survival(bench)
    assert "unpinned_survived" not in bench.report.figures


async def test_a_prefix_that_was_not_there_was_not_released(bench: Bench) -> None:
    with pytest.raises(DemoError, match="only 0 of 1888 tokens"):
        await measurements.delete(bench)
    assert "deleted_unpinned" not in bench.report.figures


async def test_a_warm_up_that_found_everything_cached_proves_nothing(
    bench: Bench, world: World
) -> None:
    world.cached, world.own_tokens = TOKENS, 100_000
    own_before = await measurements.own_tokens(bench)
    with pytest.raises(DemoError, match="0 tokens computed"):
        await measurements.warm(bench, 10_000, own_before)


async def test_warm_ups_of_earlier_runs_are_not_counted(bench: Bench, world: World) -> None:
    world.cached, world.own_tokens = TOKENS, 100_000
    own_before = await measurements.own_tokens(bench)
    world.own_tokens += TOKENS
    await measurements.warm(bench, 10_000, own_before)
    declared = measurements.ROUNDS * measurements.DECLARED_PER_ROUND
    expected = 1 - (declared * 20 + 2 * TOKENS) / 10_000
    assert bench.report.figures["prefill_reduction"] == pytest.approx(expected)
