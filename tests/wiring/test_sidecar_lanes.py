"""The lanes with a real executor, when the board changes just as work begins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import HttpUrl

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import build_sidecar
from promptprefix_sidecar.snapshot import Record, Snapshot
from tests.unit.sidecar.records import placement, prepared, snapshot

from .fake_control import FakeControl
from .fake_engine import FakeEngine

OTHER = prepared("other", pinning=Pinning.SOFT)
FORGOTTEN = Record(placement("a", pinning=Pinning.SOFT), settled=True)


@pytest.mark.parametrize("after", [snapshot(OTHER), snapshot(FORGOTTEN, OTHER)])
async def test_work_whose_record_goes_as_it_begins_leaves_the_lane_running(
    tmp_path: Path, after: Snapshot
) -> None:
    settings = Settings(
        control_url=HttpUrl("https://operator"),
        pod_ip="10.0.0.7",
        key_file=tmp_path / "key",
        latch_file=tmp_path / "latch",
    )
    engine = FakeEngine(models=("m",))

    async def change() -> None:
        sidecar.board.apply(lambda _: after)

    async with engine.client() as client:
        sidecar = build_sidecar(settings, client, FakeControl(), Clock())
        sidecar.board.apply(lambda _: snapshot(prepared("a", pinning=Pinning.SOFT)))
        changed = sidecar.board.subscribe()
        # The lane plans, the board changes, and only then does the planned work begin.
        lane = asyncio.create_task(sidecar.warm_lane.warm())
        await asyncio.create_task(change())
        async with asyncio.timeout(10):
            while sidecar.board.snapshot.records["other"].phase is not Phase.WARM:
                waiter = asyncio.create_task(changed.wait())
                await asyncio.wait({lane, waiter}, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                assert not lane.done(), lane
        lane.cancel()
        await asyncio.wait({lane})
