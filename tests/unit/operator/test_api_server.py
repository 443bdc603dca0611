"""What the API server's refusals become, and what the process does about a CRD that is too old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from promptprefix_operator import __main__ as entry
from promptprefix_operator.api_server import ApiError, ApiServer, FencedError
from promptprefix_operator.crd_check import CrdTooOldError

FORBIDDEN = (
    'leases.coordination.k8s.io "promptprefix-operator" is forbidden: User "x" cannot update '
    'resource "leases" in API group "coordination.k8s.io" in the namespace "system"'
)


async def test_a_missing_right_is_named_with_its_remedy() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"message": FORBIDDEN, "reason": "Forbidden"}, status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(app) as server:
        api = ApiServer(Configuration(host=f"http://{server.host}:{server.port}"))
        with pytest.raises(ApiError) as caught:
            await api.replace("/x", {})
        await api.close()
    for part in ("cannot update", '"leases"', 'namespace "system"', "helm upgrade"):
        assert part in str(caught.value)
    assert caught.value.status == 403


async def test_a_fenced_write_is_not_sent_and_no_write_outlasts_the_lead() -> None:
    asked: list[str] = []

    async def slow(request: web.Request) -> web.Response:
        asked.append(request.method)
        if request.method != "GET":
            await request.read()
            await asyncio.Event().wait()
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", slow)
    left = [0.05]
    async with TestServer(app) as server:
        api = ApiServer(Configuration(host=f"http://{server.host}:{server.port}"))
        fenced = api.fenced(lambda: left[0])
        with pytest.raises(ApiError, match="Timeout"):
            await fenced.create("/x", {})
        left[0] = 0.0
        with pytest.raises(FencedError):
            await fenced.create("/x", {})
        await fenced.get("/x")
        await api.close()
    assert asked == ["POST", "GET"]


@pytest.fixture
def _logs() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


@pytest.mark.usefixtures("_logs")
def test_a_crd_that_is_too_old_ends_the_process_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def too_old(_: object) -> None:
        raise CrdTooOldError("it lacks spec.x: install the CRD of this release")

    monkeypatch.setattr(entry, "_run", too_old)
    monkeypatch.setenv("PROMPTPREFIX_NAMESPACES", "ml")
    monkeypatch.setenv("PROMPTPREFIX_OWN_NAMESPACE", "system")
    assert entry.main() == 3
    assert "install the CRD of this release" in capsys.readouterr().err
