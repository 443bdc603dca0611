"""Many real sidecars in one process, each beside its own simulated engine; no node runs the pods.

``python -m bench.simulated_fleet FILE`` runs an `Order` until SIGTERM. It is a process of its own,
so that whoever measures isn't slowed by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from pydantic import HttpUrl

from bench.fleet_pods import PodOfFleet
from e2e.simulator import SimulatedEngine, SimulatorOptions, Timing, simulator_client
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlClient, dialling
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import build_sidecar

BLOCK_SIZE = 16
BLOCKS = 4096
STARTS_PER_S = 20
"""Pods of a large fleet don't start in the same instant either."""
PREFILL_TOKENS_PER_S = 10_000.0
PROBE_SECONDS = 15.0
REPORT_SECONDS = 30.0
"""Rarer than in pods of their own: all sidecars share one core, and would spend it on looking."""
END_SECONDS = 30.0


@dataclass(frozen=True)
class Order:
    """What a fleet's process is told: its pods, where the operator is, and a folder of its own."""

    pods: tuple[PodOfFleet, ...]
    control_url: str
    authority: str
    folder: str

    def write(self, file: Path) -> None:
        """Leave the order for the process."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Order:
        """Take an order."""
        found = json.loads(file.read_text())
        return cls(**{**found, "pods": tuple(PodOfFleet(**each) for each in found["pods"])})


@contextlib.asynccontextmanager
async def fleet(order: Order) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the order in a process of its own until the block ends."""
    file = Path(order.folder) / "order.json"
    order.write(file)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.simulated_fleet", str(file)
    )
    try:
        yield process
        if process.returncode is not None:
            raise RuntimeError(f"the fleet ended by itself with {process.returncode}")
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), END_SECONDS)


async def run(order: Order) -> None:
    """Run a sidecar and an engine for every pod until SIGTERM; a part that fails ends all."""
    folder = Path(order.folder)
    key = secrets.token_bytes(32)
    (folder / "key").write_bytes(key)
    (folder / "ca.crt").write_text(order.authority)
    options = SimulatorOptions(
        blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=32_768,
        max_num_seqs=64,
        max_batched_tokens=8192,
        key=key,
        timing=Timing(prefill_tokens_per_s=PREFILL_TOKENS_PER_S, decode_seconds=0.01),
    )
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        async def start() -> None:
            for pod in order.pods:
                settings = _settings(pod, order.control_url, folder)
                engine = simulator_client(SimulatedEngine(options))
                sidecar = build_sidecar(settings, engine, _control(settings), Clock())
                tasks.append(group.create_task(sidecar.run()))
                await asyncio.sleep(1 / STARTS_PER_S)

        def end() -> None:
            for task in tasks:
                task.cancel()

        tasks.append(group.create_task(start()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)


def _settings(pod: PodOfFleet, control_url: str, folder: Path) -> Settings:
    token_file = folder / f"{pod.name}.token"
    token_file.write_text(pod.token)
    return Settings(
        control_url=HttpUrl(control_url),
        ca_file=folder / "ca.crt",
        token_file=token_file,
        pod_ip=pod.address,
        key_file=folder / "key",
        latch_file=folder / f"{pod.name}.latch",
        probe_interval_s=PROBE_SECONDS,
        report_interval_s=REPORT_SECONDS,
    )


def _control(settings: Settings) -> ControlClient:
    dial = dialling(str(settings.control_url))
    return ControlClient(dial, ca_file=settings.ca_file, token_file=settings.token_file)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(run(Order.read(Path(sys.argv[1]))))
