"""What clients of the real router can not do: choose a pod, command an engine, leave the API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest

from e2e.router.fake_engine import FakeEngine
from e2e.router.samples import (
    CHAT,
    DECISION,
    DESTINATION,
    ask,
    counts,
    pool,
    prefix,
    undeclared,
)
from e2e.router.stack import RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_the_picker_never_sees_credentials(stack: RouterStack) -> None:
    """A listener in the picker's place: the question has the body, and no secret of the client."""
    await stack.stop_picker()
    questions: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        questions.append(await reader.readuntil(b"}"))
        writer.close()
        await writer.wait_closed()

    path = stack.folder / "picker.sock"
    server = await asyncio.start_unix_server(listen, path)
    path.chmod(0o666)
    response = await ask(
        stack, {"a": 1}, authorization="Bearer secret", x_api_key="secret", cookie="secret"
    )
    server.close()
    await stack.start_picker()
    assert response.status_code == 200
    (question,) = questions
    assert question.startswith(f"POST {CHAT} HTTP/1.1".encode())
    assert b"secret" not in question
    (seen,) = [seen for engine in stack.engines for seen in engine.seen]
    assert seen.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("picker", ["up", "down"])
async def test_a_client_can_not_choose_its_pod(stack: RouterStack, picker: str) -> None:
    """A forged destination neither leaves the pool nor chooses within it."""
    outsider = await FakeEngine("outsider").start()
    if picker == "down":
        await stack.stop_picker()
    try:
        for place in (f"127.0.0.1:{outsider.port}", f"127.0.0.1:{stack.engines[0].port}"):
            for name in (DESTINATION, DESTINATION.upper(), "X-Gateway-Destination-Endpoint"):
                for _ in range(4):
                    response = await stack.client.post(
                        f"{stack.url}{CHAT}",
                        json=undeclared(),
                        headers=[(name, place), (name, f"{place},{place}")],
                    )
                    assert response.status_code == 200
        models = f"{stack.url}/v1/models"
        forged = {DESTINATION: f"127.0.0.1:{outsider.port}"}
        assert (await stack.client.get(models, headers=forged)).status_code == 200
    finally:
        await outsider.stop()
        if picker == "down":
            await stack.start_picker()
    assert outsider.seen == []
    assert all(count > 0 for count in counts(stack).values())
    pool = {f"127.0.0.1:{engine.port}" for engine in stack.engines}
    for engine in stack.engines:
        destinations = [seen.headers.get(DESTINATION) for seen in engine.seen]
        chosen = [each.split(",") for each in destinations if each is not None]
        assert {each[0] for each in chosen} <= {f"127.0.0.1:{engine.port}"}
        assert {place for each in chosen for place in each} <= pool


async def test_headers_that_steer_envoy_are_stripped(stack: RouterStack) -> None:
    """A client can't shorten the timeout, ask for retries or pass a body off as partial."""
    for engine in stack.engines:
        engine.hold.clear()
    task = asyncio.create_task(
        ask(
            stack,
            undeclared(),
            x_envoy_upstream_rq_timeout_ms="1",
            x_envoy_retry_on="5xx",
            x_envoy_original_path="/metrics",
            x_envoy_auth_partial_body="true",
            x_promptprefix_user="kept",
        )
    )

    async def arrived() -> bool:
        return any(engine.active for engine in stack.engines)

    await until(arrived, "the request is active")
    for engine in stack.engines:
        engine.hold.set()
    response = await task
    assert response.status_code == 200
    assert response.headers[DECISION] == "least-loaded;match=undeclared"
    (seen,) = [seen for engine in stack.engines for seen in engine.seen]
    assert not [name for name in seen.headers if name in ENVOY_HEADERS]
    assert seen.headers["x-promptprefix-user"] == "kept"


ENVOY_HEADERS = {
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-retry-on",
    "x-envoy-original-path",
    "x-envoy-auth-partial-body",
}


ESCAPED = "".join(f"\\u{ord(letter):04X}" for letter in "promptprefix")


COMMANDS = (
    b'{"vllm_xargs":{"promptprefix":"x"}}',
    b'{"vllm_xargs":{"a":1,"%s":"x"}}' % ESCAPED.encode(),
    b'{"vllm\\u005fxargs":{"promptprefi\\u0078":"x"}}',
    b'{"vllm_xargs":{"promptprefix":"x"},"vllm_xargs":{}}',
    b'{"vllm_xargs":{},"vllm_xargs":{"promptprefix":"x","promptprefix":""}}',
    b'{"kv_transfer_params":{"promptprefix":"x"}}',
    '{"vllm_xargs":{"promptprefix":"x"}}'.encode("utf-16"),
    '{"vllm_xargs":{"promptprefix":"x"}}'.encode("utf-32-le"),
    b'\xef\xbb\xbf{"vllm_xargs":{"promptprefix":"x"}}',
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b',"vllm_xargs":{"promptprefix":"x"}}',
)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_engine_commands_are_refused(stack: RouterStack, path: str) -> None:
    for body in COMMANDS:
        response = await stack.client.post(f"{stack.url}{path}", content=body)
        assert response.status_code == 403, body[:80]
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"]["code"] == "engine_command_refused"
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


async def test_a_chunked_engine_command_is_refused(stack: RouterStack) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for byte in b'{"vllm_xargs":{"promptprefix":"x"}}':
            yield bytes([byte])

    response = await stack.client.post(
        f"{stack.url}{CHAT}",
        content=chunks(),
        headers={"content-type": "application/json; charset=utf-7"},
    )
    assert response.status_code == 403


async def test_a_requests_own_number_reaches_the_engine(stack: RouterStack) -> None:
    assert (await ask(stack, undeclared(), x_request_id="mine-1")).status_code == 200
    assert (await ask(stack, undeclared())).status_code == 200
    seen = [each.headers for engine in stack.engines for each in engine.seen]
    assert {each.get("x-request-id") for each in seen} == {"mine-1", None}


async def test_other_extra_arguments_are_the_users_own(stack: RouterStack) -> None:
    body = {
        **undeclared("what is promptprefix?"),
        "vllm_xargs": {"session_id": "s"},
        "metadata": {"promptprefix": "mine"},
    }
    assert (await ask(stack, body)).status_code == 200


FOREIGN_PATHS = (
    "/metrics",
    "/reset_prefix_cache",
    "/sleep",
    "/pause",
    "/server_info",
    "/tokenize",
    "/inference/v1/generate",
    "/v1/load_lora_adapter",
    "/v1/chat/completions/render",
    "/v1/chat/completions/../../../reset_prefix_cache",
    "/v1/models/%2e%2e/%2e%2e/reset_prefix_cache",
    "//reset_prefix_cache",
    f"/{CHAT}",
    f"{CHAT}/",
    "/v1/./chat/completions",
    "/v1/chat%2Fcompletions",
    "/v1//..//sleep",
    "/v1/models;/../sleep",
    "/v1/models/..;/sleep",
    "/V1/MODELS",
    "/%73leep",
)


async def test_only_the_api_is_served(stack: RouterStack) -> None:
    for path in FOREIGN_PATHS:
        status, body = await _raw(stack, f"POST {path} HTTP/1.1")
        assert status == 404, path
        assert json.loads(body)["error"]["code"] == "not_found"
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


ODD_TARGETS = (
    "GET /v1/models%2f..%2f..%2fsleep HTTP/1.1",
    "GET /v1%5cmodels HTTP/1.1",
    "CONNECT 127.0.0.1:80 HTTP/1.1",
    "GET /v1/models\x00 HTTP/1.1",
)


async def test_odd_targets_are_refused(stack: RouterStack) -> None:
    for line in ODD_TARGETS:
        status, _ = await _raw(stack, line)
        assert status in (400, 404), line
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


async def _raw(stack: RouterStack, line: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(f"{line}\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def test_another_namespace_is_not_served(stack: RouterStack) -> None:
    foreign = pool(stack.engines[:1])[0].model_copy(update={"namespace": "other"})
    await stack.publish((prefix(),), (foreign, *pool(stack.engines[1:], warm="b")))
    for _ in range(6):
        assert (await ask(stack, undeclared())).status_code == 200
    assert counts(stack)["a"] == 0


async def test_the_statistics_door_shows_nothing_else(stack: RouterStack) -> None:
    base = f"http://127.0.0.1:{stack.stats_port}"
    assert (await stack.client.get(f"{base}/stats/prometheus")).status_code == 200
    for path in (
        "/",
        "/config_dump",
        "/clusters",
        "/stats",
        "/stats/prometheus/../../quitquitquit",
    ):
        assert (await stack.client.get(f"{base}{path}")).status_code == 404
    assert (await stack.client.post(f"{base}/quitquitquit")).status_code == 404
    assert (await stack.client.post(f"{base}/stats/prometheus")).status_code == 404
