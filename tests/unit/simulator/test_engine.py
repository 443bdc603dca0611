"""The simulated engine as clients in the same process meet it: failures, restarts, streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from e2e.simulator import Fault, SimulatedEngine, SimulatorOptions, Timing, simulator_client
from promptprefix_vllm.commands import encode

KEY = b"k" * 32
BODY = {"model": "demo", "prompt": list(range(300, 400)), "max_tokens": 1}


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the engine steps in this very loop
            await asyncio.sleep(0)


async def start_time(client: httpx.AsyncClient) -> str:
    page = (await client.get("/metrics")).text
    return next(x for x in page.splitlines() if x.startswith("process_start_time_seconds"))


async def test_a_restart_is_a_new_boot_with_an_empty_cache() -> None:
    engine = SimulatedEngine(SimulatorOptions())
    async with simulator_client(engine) as client:
        await client.post("/v1/completions", json=BODY)
        assert cached(await client.post("/v1/completions", json=BODY)) == 96
        before = await start_time(client)
        engine.restart()
        assert await start_time(client) != before
        assert cached(await client.post("/v1/completions", json=BODY)) == 0


async def test_a_crash_breaks_what_is_under_way_and_refuses_the_next() -> None:
    engine = SimulatedEngine(SimulatorOptions(timing=Timing(prefill_tokens_per_s=1.0)))
    async with simulator_client(engine) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: engine.core.scheduler.running)
        engine.crash()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


async def test_a_slow_start_answers_nobody_until_it_is_over() -> None:
    engine = SimulatedEngine(SimulatorOptions(start_seconds=3600))
    async with simulator_client(engine) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        engine.restart(start_seconds=0.0)
        assert (await client.get("/health")).status_code == 200


async def test_a_late_answer_is_a_timeout_and_aborts_the_request() -> None:
    engine = SimulatedEngine(SimulatorOptions(timing=Timing(prefill_tokens_per_s=1.0)))
    async with simulator_client(engine, timeout_s=0.05) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=BODY)
    assert not engine.core.scheduler.requests
    assert engine.core.counters.finished["abort"] == 1
    engine.crash()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("/health", drop=True), httpx.RemoteProtocolError),
        (Fault("/health", hang=True), httpx.ReadTimeout),
        (Fault("/health", delay_s=3600), httpx.ReadTimeout),
        (Fault("/health", status=500), None),
        (Fault("/health", status=500, times=2), None),
    ],
)
async def test_faults_happen_as_often_as_asked(fault: Fault, error: type[Exception] | None) -> None:
    engine = SimulatedEngine(SimulatorOptions())
    engine.fail(fault)
    async with simulator_client(engine, timeout_s=0.05) as client:
        assert (await client.get("/version")).status_code == 200
        for _ in range(fault.times):
            if error is None:
                assert (await client.get("/health")).status_code == 500
            else:
                with pytest.raises(error):
                    await client.get("/health")
        assert (await client.get("/health")).status_code == 200


async def test_a_stream_that_is_left_early_aborts_its_request() -> None:
    engine = SimulatedEngine(SimulatorOptions(timing=Timing(decode_seconds=0.001)))
    body = BODY | {"stream": True, "max_tokens": 1000}
    async with simulator_client(engine) as client:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                assert line.startswith("data: ")
                break
        assert not engine.core.scheduler.requests


async def test_the_plugin_pins_in_the_simulated_pool() -> None:
    engine = SimulatedEngine(SimulatorOptions(key=KEY))
    fields: dict[str, str | int] = {
        "v": 1, "op": "pin", "id": "a", "epoch": engine.core.scheduler._desk.epoch, "counter": 1,
        "expiry": 2**40, "lease": 600, "priority": 0, "tokens": 96,
    }  # fmt: skip
    command = encode(fields, BODY["prompt"], KEY)  # type: ignore[arg-type]
    async with simulator_client(engine) as client:
        sent = BODY | {"vllm_xargs": {"promptprefix": command}}
        answer = (await client.post("/v1/completions", json=sent)).json()["kv_transfer_params"]
        assert answer["promptprefix"]["blocks_pinned"] == 3
        for seed in range(8):
            other = BODY | {"prompt": list(range(1000 * seed, 1000 * seed + 900))}
            await client.post("/v1/completions", json=other)
        assert cached(await client.post("/v1/completions", json=BODY)) == 96


async def test_a_sleeping_engine_keeps_its_requests_waiting() -> None:
    engine = SimulatedEngine(SimulatorOptions())
    async with simulator_client(engine) as client:
        await client.post("/sleep?level=1")
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: engine.core.scheduler.waiting)
        assert json.loads((await client.get("/is_sleeping")).content) == {"is_sleeping": True}
        await client.post("/wake_up")
        assert (await asking).status_code == 200
