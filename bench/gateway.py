"""The gateway door behind an Envoy that stands for a gateway: ``python -m bench.gateway``.

Engines answer at once, bodies have 10 kB, 200 prefixes are declared. Told are requests per second
of all on this machine, and how many a core of the picker alone would serve: one second over the CPU
time that the picker spends on a request. "gRPC alone" is a door that answers with ready bytes
(`bench.constant_door`). Needs `wrk` on the PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.contestants import (
    Contestant,
    answers,
    endpoints,
    plain_envoy,
    running,
    running_envoy,
)
from bench.instant_backend import MODEL
from bench.legs import Load, medians, run_turns
from bench.prompts import SMALL, prompt, write_prompts
from bench.router import CONNECTIONS, DECLARED, ENGINES, engines
from e2e.router.fake_control import FakeControl
from e2e.router.fake_engine import FakeEngine
from e2e.router.gateway_envoy import WAYS as LISTENERS
from e2e.router.gateway_envoy import gateway_bootstrap
from e2e.router.gateway_stack import GatewayStack
from e2e.router.stack import free_ports, public_folder

REPORT = Path("build/gateway.json")
WAYS = {
    "buffered": ("buffered", False),
    "buffered, named": ("buffered", True),
    "full duplex": ("strict", False),
    "full duplex, named": ("strict", True),
}
"""What is told -> a listener of `e2e.router.gateway_envoy`, and whether a prefix is named."""


GRPC_ALONE = "gRPC alone, buffered"


@asynccontextmanager
async def grpc_alone(folder: Path, addresses: Sequence[str]) -> AsyncIterator[Contestant]:
    """Run the door that thinks nothing, and an Envoy before it."""
    door_port, admin_port, *ports = free_ports(2 + len(LISTENERS))
    engine_ports = [int(address.rpartition(":")[2]) for address in addresses]
    named = {way.name: port for way, port in zip(LISTENERS, ports, strict=True)}
    config = folder / "grpc-alone.json"
    config.write_text(json.dumps(gateway_bootstrap(named, admin_port, door_port, engine_ports)))
    async with (
        running(sys.executable, "-m", "bench.constant_door", str(door_port), addresses[0]) as door,
        running_envoy(config) as envoy,
    ):
        port = named["buffered"]
        await answers(f"http://127.0.0.1:{port}/v1/chat/completions", {"model": MODEL})
        yield Contestant(GRPC_ALONE, port, {"picker": door.pid, "envoy": envoy.pid})


async def measure(turns: int, seconds: int) -> dict[str, Any]:
    """Return the medians of each way."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(ENGINES)]
    declared = [prompt(number, SMALL) for number in range(DECLARED)]
    async with AsyncExitStack() as closing:
        folder = closing.enter_context(public_folder())
        prompts = folder / "prompts.tsv"
        write_prompts(prompts, declared)
        await closing.enter_async_context(engines(addresses))
        plain = await closing.enter_async_context(plain_envoy(folder / "plain", addresses))
        alone = await closing.enter_async_context(grpc_alone(folder, addresses))
        control = await FakeControl(folder / "control").start()
        closing.push_async_callback(control.stop)
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        stack = GatewayStack(folder, control, [FakeEngine(str(port), port) for port in ports])
        closing.push_async_callback(stack.stop)
        await stack.start()
        await stack.publish(tuple(each.prefix for each in declared), endpoints(addresses, declared))
        picker, envoy = stack.picker, stack.envoy
        if picker is None or envoy is None:
            raise RuntimeError("the stack did not start")
        pids = {"picker": picker.pid, "envoy": envoy.pid}
        ways = [
            Contestant(name, stack.ports[listener], pids, named=named)
            for name, (listener, named) in WAYS.items()
        ]
        load = Load(prompts, CONNECTIONS, seconds)
        legs = await run_turns([plain, alone, *ways], load, turns, warm_up_s=1)
        warm = await stack.metric("promptprefix_router_decisions_total", outcome="warm")
        everything = await stack.metric("promptprefix_router_decisions_total")
        memory = await stack.metric("process_resident_memory_bytes")
    found = {name: medians(each) for name, each in legs.items()}
    for name in (GRPC_ALONE, *WAYS):
        spent_ms = found[name]["cpu_ms_of"]["picker"]
        found[name]["per_second_of_a_pickers_core"] = round(1000 / spent_ms) if spent_ms else None
    return {"medians": found, "warm": warm / everything, "picker_mb": round(memory / 1e6, 1)}


def main() -> None:
    """Measure, print and write the report."""
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    report = asyncio.run(measure(options.turns, options.seconds))
    text = json.dumps(report, indent=1)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
