"""A whole sidecar between a fake engine and a fake operator, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pydantic import HttpUrl

from promptprefix.payload import Payload
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import Sidecar, build_sidecar
from promptprefix_sidecar.snapshot import Snapshot

from .fake_control import FakeControl
from .fake_engine import FakeEngine

TEXT = Payload(systemInstructions="You sort support requests. " * 6)
OTHER = Payload(systemInstructions="You translate legal texts. " * 6)


@contextlib.asynccontextmanager
async def running(
    engine: FakeEngine,
    control: FakeControl,
    folder: Path,
    clock: Clock | None = None,
    **changes: object,
) -> AsyncIterator[Sidecar]:
    key_file = folder / "key"
    key_file.write_bytes(engine.key)
    values: dict[str, object] = {
        "control_url": HttpUrl("https://operator"),
        "pod_ip": "10.0.0.7",
        "key_file": key_file,
        "latch_file": folder / "latch",
        "probe_interval_s": 0.01,
        "report_interval_s": 0.02,
        "ready_settle_s": 0.0,
        "listen_host": "127.0.0.1",
        "blocks_port": 0,
        **changes,
    }
    async with engine.client() as client:
        sidecar = build_sidecar(Settings.model_validate(values), client, control, clock or Clock())
        work = asyncio.create_task(sidecar.run())
        try:
            yield sidecar
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def until(sidecar: Sidecar, condition: Callable[[Snapshot], object]) -> None:
    """Wait until the board satisfies a condition."""
    changed = sidecar.board.subscribe()
    async with asyncio.timeout(10):
        while not condition(sidecar.board.snapshot):
            await changed.wait()


async def eventually(engine: FakeEngine, condition: Callable[[], object]) -> None:
    """Wait until something beside the board holds; the sidecar's probes keep asking the engine."""
    async with asyncio.timeout(10):
        while not condition():
            engine.asked.clear()
            await engine.asked.wait()
