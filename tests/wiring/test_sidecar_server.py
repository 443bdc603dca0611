"""The sidecar's own port."""

from __future__ import annotations

from pathlib import Path

import httpx
from aiohttp.test_utils import TestServer, unused_port
from pydantic import HttpUrl

from promptprefix_sidecar import desired
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.gate import Gate
from promptprefix_sidecar.latch_file import LatchFile
from promptprefix_sidecar.metrics import Metrics
from promptprefix_sidecar.readiness import ReadinessLimits
from promptprefix_sidecar.server import make_app
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import open_sidecar

from ..unit.sidecar.records import placement, snapshot, warm


async def test_health_readiness_and_metrics(tmp_path: Path) -> None:
    board = Board(snapshot(warm("a"), warm("b")))
    metrics = Metrics()
    metrics.watch(board)
    gate = Gate(board, ReadinessLimits(settle_s=0.0), Clock(), LatchFile(tmp_path / "latch"))
    async with (
        TestServer(make_app(gate, metrics.page)) as server,
        httpx.AsyncClient(base_url=str(server.make_url("/")), trust_env=False) as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        gate.answered("b")
        assert (await client.get("/readyz")).status_code == 200
        page = (await client.get("/metrics")).text
        assert 'promptprefix_sidecar_pinned_tokens{name="a",namespace="ml"} 32.0' in page
        assert 'promptprefix_sidecar_warm{name="b",namespace="ml"} 1.0' in page
        board.apply(lambda known: desired.with_desired(known, [placement("a")]))
        page = (await client.get("/metrics")).text
        assert 'name="a"' in page
        assert 'name="b"' not in page


async def test_the_port_is_open_before_engine_and_operator_are_there(tmp_path: Path) -> None:
    settings = Settings(
        control_url=HttpUrl("https://127.0.0.1:9"),
        engine_url=HttpUrl("http://127.0.0.1:9"),
        pod_ip="127.0.0.1",
        key_file=tmp_path / "key",
        latch_file=tmp_path / "latch",
        listen_host="127.0.0.1",
        listen_port=unused_port(),
    )
    url = f"http://127.0.0.1:{settings.listen_port}"
    async with (
        open_sidecar(settings, Clock()) as sidecar,
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        await sidecar.watcher.look()
        assert (await client.get("/healthz")).status_code == 200
        answer = await client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the engine is not healthy\n")
