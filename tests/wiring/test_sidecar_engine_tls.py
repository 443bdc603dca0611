"""An engine that speaks HTTPS and asks for a key, in the sidecar's own pod."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import build_sidecar, connect_engine
from promptprefix_sidecar.state import Address, sidecar_state

from .fake_control import FakeControl

KEY = "hush-4711"
METRICS = 'process_start_time_seconds 1\nvllm:cache_config_info{block_size="16"} 1\n'


async def answer(request: web.Request) -> web.Response:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        return web.Response(status=401)
    match request.path:
        case "/metrics":
            return web.Response(text=METRICS)
        case "/v1/models":
            return web.json_response({"data": [{"id": "demo"}]})
        case "/version":
            return web.json_response({"version": "0-fake"})
    return web.Response()


@contextlib.asynccontextmanager
async def engine_on_loopback(folder: Path) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    context = LoopbackAuthority(folder / "tls").server_context()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def settings(folder: Path, port: int, **changes: object) -> Settings:
    values: dict[str, object] = {
        "control_url": "https://operator",
        "engine_url": f"https://127.0.0.1:{port}",
        "engine_api_key": KEY,
        "pod_ip": "10.0.0.7",
        "key_file": folder / "key",
        "latch_file": folder / "latch",
        **changes,
    }
    return Settings.model_validate(values)


@pytest.mark.parametrize("in_file", [False, True])
async def test_its_certificate_is_taken_as_it_is(tmp_path: Path, in_file: bool) -> None:
    changes: dict[str, object] = {}
    if in_file:
        (tmp_path / "api-key").write_text(f"{KEY}\n")
        changes = {"engine_api_key": None, "engine_api_key_file": tmp_path / "api-key"}
    async with engine_on_loopback(tmp_path) as port:
        chosen = settings(tmp_path, port, **changes)
        async with connect_engine(chosen) as client:
            sidecar = build_sidecar(chosen, client, FakeControl(), Clock())
            await sidecar.watcher.look()
    assert sidecar.board.snapshot.engine.healthy
    assert sidecar.board.snapshot.engine.models == ("demo",)
    address = Address(chosen.pod_ip, chosen.engine_port, chosen.engine_tls)
    state = sidecar_state(sidecar.board.snapshot, address)
    assert (state.engine.tls, state.engine.port) == (True, port)


async def test_an_engine_elsewhere_must_have_a_certificate_that_the_system_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same server, seen as one outside the pod."""
    monkeypatch.setattr("promptprefix_sidecar.engine_tls.in_own_pod", lambda *_: False)
    async with engine_on_loopback(tmp_path) as port:
        chosen = settings(tmp_path, port)
        async with connect_engine(chosen) as client:
            sidecar = build_sidecar(chosen, client, FakeControl(), Clock())
            await sidecar.watcher.look()
            await sidecar.watcher.look()
    assert not sidecar.board.snapshot.engine.healthy
    log = capsys.readouterr().out
    assert log.count("CERTIFICATE_VERIFY_FAILED") == 1
    assert KEY not in log
