"""A whole sidecar beside the simulated engine, whose cache evicts to the block as vLLM's does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import HttpUrl

from e2e.simulator import Fault, SimulatedEngine, SimulatorOptions, simulator_client
from promptprefix.payload import Payload
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase, PlacementState
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import Sidecar, build_sidecar

from .fake_control import FakeControl

KEY = b"k" * 32
TEXT = Payload(systemInstructions="".join(f"Rule {n}: answer in one word. " for n in range(60)))
OPTIONS = SimulatorOptions(blocks=129, block_size=16, key=KEY)
SALT = "s" * 24


@pytest.fixture
def simulated() -> SimulatedEngine:
    return SimulatedEngine(OPTIONS)


@contextlib.asynccontextmanager
async def beside(
    engine: SimulatedEngine, control: FakeControl, folder: Path
) -> AsyncIterator[Sidecar]:
    (folder / "key").write_bytes(KEY)
    settings = Settings(
        control_url=HttpUrl("https://operator"),
        pod_ip="10.0.0.7",
        key_file=folder / "key",
        latch_file=folder / "latch",
        probe_interval_s=0.02,
        report_interval_s=0.05,
        ready_settle_s=0.0,
    )
    async with simulator_client(engine) as client:
        sidecar = build_sidecar(settings, client, control, Clock())
        work = asyncio.create_task(sidecar.run())
        try:
            yield sidecar
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def chat(client: httpx.AsyncClient, user: str = "hello", **more: Any) -> int:
    """Ask as a user; return how much of the prompt was cached."""
    turns = [
        {"role": "system", "content": TEXT.systemInstructions},
        {"role": "user", "content": user},
    ]
    body = {"model": "demo", "messages": turns, "max_tokens": 1, **more}
    answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def noise(client: httpx.AsyncClient) -> None:
    """Send other traffic of several times the cache."""
    for seed in range(8):
        prompt = [1000 + seed * 5000 + place for place in range(64 * 16)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
        (await client.post("/v1/completions", json=body)).raise_for_status()


def whole(state: PlacementState) -> bool:
    return state.pinned is Pinning.HARD and state.resident_tokens == state.tokens > 0


@contextlib.asynccontextmanager
async def warm(
    engine: SimulatedEngine, control: FakeControl, folder: Path, salt: str = ""
) -> AsyncIterator[tuple[PlacementState, httpx.AsyncClient]]:
    """Give the state of a prefix that has become whole, and a client of its users."""
    placement = control.placement("triage", TEXT, salt=salt)
    await control.want([placement])
    async with beside(engine, control, folder), simulator_client(engine) as users:
        yield await control.state(placement.id, where=whole), users


async def test_a_pinned_prefix_outlives_noise_and_its_users_are_seen(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with warm(simulated, control, tmp_path) as (found, users):
        await noise(users)
        assert await chat(users) == found.tokens
        await control.state(found.id, where=lambda state: state.last_hit is not None)


@pytest.mark.parametrize("loss", ["restart", "crash", "reset"])
async def test_what_an_engine_loses_is_warmed_again(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path, loss: str
) -> None:
    async with warm(simulated, control, tmp_path) as (found, users):
        if loss == "restart":
            simulated.restart()
        elif loss == "crash":
            simulated.restart(after_s=0.2)
        else:
            await users.post("/reset_prefix_cache")
        table = simulated.core.scheduler._desk.table
        async with asyncio.timeout(10):
            while not table.pins:  # noqa: ASYNC110 - the sidecar runs in this very loop
                await asyncio.sleep(0.01)
        assert await chat(users) == found.tokens


async def test_a_sleeping_engine_is_left_alone_and_warmed_after_it_wakes(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with warm(simulated, control, tmp_path) as (found, users):
        await users.post("/sleep?level=1")
        await control.reported(lambda state: state.engine.asleep)
        # A report may have come just after it fell asleep; a warm-up would have a long prompt.
        waiting = simulated.core.scheduler.requests.values()
        assert all(len(each.prompt_token_ids) == 1 for each in waiting)
        await users.post("/wake_up")
        await control.reported(lambda state: not state.engine.asleep)
        await control.state(found.id, where=whole)
        assert await chat(users) == found.tokens


async def test_an_engine_that_fails_now_and_then_gets_warm_all_the_same(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path
) -> None:
    simulated.fail(Fault("/tokenize", drop=True))
    simulated.fail(Fault("/v1/completions", status=503))
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with beside(simulated, control, tmp_path):
        assert (await control.state(placement.id, where=whole)).tokens > 0


async def test_a_salted_prefix_shares_no_block_with_others(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with warm(simulated, control, tmp_path, salt=SALT) as (found, users):
        assert await chat(users) == 0
        assert await chat(users, cache_salt=SALT) == found.tokens


async def test_an_evicted_prefix_is_gone_and_its_next_user_is_told(
    simulated: SimulatedEngine, control: FakeControl, tmp_path: Path
) -> None:
    async with warm(simulated, control, tmp_path) as (held, users):
        (placement,) = control.placements
        await control.want([placement.model_copy(update={"release": OnIdle.EVICT})])
        released = await control.state(held.id, Phase.RELEASED)
        assert released.released is OnIdle.EVICT
        assert await chat(users) == 0
        await control.state(held.id, Phase.RELEASED, lambda state: state.last_hit is not None)
        await control.want([placement])
        assert (await control.state(held.id, where=whole)).tokens == held.tokens
