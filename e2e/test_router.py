"""The real picker and the real Envoy between fake engines and a fake operator."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.router.fake_control import FakeControl
from e2e.router.fake_engine import FakeEngine
from e2e.router.stack import DECISION_TIMEOUT_MS, MODEL, TENANT, RouterStack, until
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RouteEndpoint, RoutePrefix

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAYLOAD = Payload(
    systemInstructions="You are the triage desk.\nNever guess; ask. é",
    toolDefinitions='[{"type":"function","function":{"name":"lookup","parameters":{"b":1.0,"a":2}}}]',
)
DIGEST = "d" * 64
CHAT = "/v1/chat/completions"
DESTINATION = "x-gateway-destination-endpoint"
DECISION = "x-promptprefix-decision"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_stack() -> AsyncIterator[RouterStack]:
    """Start everything once; Envoy runs as nobody and reads one folder."""
    async with AsyncExitStack() as closing:
        folder = _public_folder(closing)
        control = await FakeControl(folder).start()
        closing.push_async_callback(control.stop)
        engines = [await FakeEngine(name).start() for name in ("a", "b", "c")]
        for engine in engines:
            closing.push_async_callback(engine.stop)
        stack = RouterStack(folder / "envoy", control, engines)
        closing.push_async_callback(stack.stop)
        yield await stack.start()


def _public_folder(closing: AsyncExitStack) -> Path:
    name = tempfile.TemporaryDirectory(prefix="promptprefix-router-")
    folder = Path(closing.enter_context(name))
    folder.chmod(0o755)
    return folder


@pytest_asyncio.fixture(loop_scope="module")
async def stack(whole_stack: RouterStack) -> AsyncIterator[RouterStack]:
    """Give the stack with its default table: three ready engines, ``b`` warm."""
    for engine in whole_stack.engines:
        engine.seen.clear()
        engine.healthy = True
    await whole_stack.publish((prefix(),), pool(whole_stack.engines, warm="b"))
    yield whole_stack
    for engine in whole_stack.engines:
        engine.hold.set()


def prefix() -> RoutePrefix:
    """Return the declared prefix as the router knows it."""
    return RoutePrefix(
        name="support-triage",
        tenant=TENANT,
        model=MODEL,
        fingerprint=payload_fingerprint(MODEL, PAYLOAD),
        token_digests=(DIGEST,),
    )


def pool(
    engines: Sequence[FakeEngine], warm: str = "", not_ready: str = ""
) -> tuple[RouteEndpoint, ...]:
    """Return endpoints for ``engines``; ``warm`` and ``not_ready`` hold their names."""
    return tuple(
        RouteEndpoint(
            pod_uid=f"uid-{engine.name}",
            pod=f"vllm-{engine.name}",
            namespace=TENANT,
            address="127.0.0.1",
            port=engine.port,
            models=(MODEL,),
            ready=engine.name not in not_ready,
            warm=(DIGEST,) if engine.name in warm else (),
        )
        for engine in engines
    )


def declared(user: str = "hello") -> dict[str, Any]:
    """Return a request with the declared prefix, written another way."""
    tools = json.loads(PAYLOAD.toolDefinitions)
    return {
        "tools": tools,
        "messages": [
            {"role": "system", "content": PAYLOAD.system.replace("\n", "\r\n")},
            {"role": "user", "content": user},
        ],
        "model": MODEL,
    }


def undeclared(user: str = "hello") -> dict[str, Any]:
    """Return a request without a declared prefix."""
    return {"model": MODEL, "messages": [{"role": "user", "content": user}]}


async def ask(stack: RouterStack, body: object, **headers: str) -> httpx.Response:
    """Send a chat completion."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await stack.client.post(f"{stack.url}{CHAT}", json=body, headers=names)


def counts(stack: RouterStack) -> dict[str, int]:
    """Return how many requests each engine saw."""
    return {engine.name: len(engine.seen) for engine in stack.engines}


async def test_an_exact_match_goes_to_the_warm_pod(stack: RouterStack) -> None:
    before = await stack.metric(
        "promptprefix_router_decisions_total", match="fingerprint", outcome="warm"
    )
    responses = [await ask(stack, declared(f"question {i}")) for i in range(6)]
    assert [r.json()["engine"] for r in responses] == ["b"] * 6
    assert responses[0].headers[DECISION] == "warm;match=fingerprint"
    assert (
        await stack.metric(
            "promptprefix_router_decisions_total", match="fingerprint", outcome="warm"
        )
        == before + 6
    )


async def test_the_header_names_the_prefix(stack: RouterStack) -> None:
    response = await ask(stack, undeclared(), x_promptprefix="support-triage")
    assert response.json()["engine"] == "b"
    assert response.headers[DECISION] == "warm;match=header"


async def test_undeclared_requests_spread_by_load(stack: RouterStack) -> None:
    for engine in stack.engines:
        engine.hold.clear()
    tasks = [asyncio.create_task(ask(stack, undeclared())) for _ in range(9)]

    async def all_arrived() -> bool:
        return sum(engine.active for engine in stack.engines) == 9

    await until(all_arrived, "nine requests are active")
    assert counts(stack) == {"a": 3, "b": 3, "c": 3}
    for engine in stack.engines:
        engine.hold.set()
    assert {(await task).status_code for task in tasks} == {200}


async def test_the_least_loaded_of_two_warm_pods(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines, warm="ab"))
    a, b, _ = stack.engines
    a.hold.clear()
    b.hold.clear()
    tasks = [asyncio.create_task(ask(stack, declared())) for _ in range(6)]

    async def all_arrived() -> bool:
        return a.active + b.active == 6

    await until(all_arrived, "six requests are active")
    assert counts(stack) == {"a": 3, "b": 3, "c": 0}
    a.hold.set()
    b.hold.set()
    await asyncio.gather(*tasks)


async def test_a_declared_prefix_without_a_warm_pod_is_cold(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines))
    response = await ask(stack, declared())
    assert response.status_code == 200
    assert response.headers[DECISION] == "cold;match=fingerprint"


async def test_an_unknown_model_is_answered_by_an_engine(stack: RouterStack) -> None:
    response = await ask(stack, {**undeclared(), "model": "nobody/serves-this"})
    assert response.status_code == 200
    assert response.headers[DECISION] == "unrouted;match=undeclared"


async def test_streams_pass_chunk_by_chunk(stack: RouterStack) -> None:
    engine = stack.engines[1]
    engine.hold.clear()
    async with stack.client.stream(
        "POST", f"{stack.url}{CHAT}", json=declared(), headers={"x-test-stream": "1"}
    ) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data: first\n\n"
        engine.hold.set()
        assert b"".join([chunk async for chunk in chunks]) == b"data: last\n\n"


async def test_requests_survive_the_picker(stack: RouterStack) -> None:
    """Stopped under load and started again: no failed request, and Envoy counts the bypass."""
    bypassed = "envoy_http_ext_authz_failure_mode_allowed"
    assert await stack.stat(bypassed) == 0
    statuses: list[int] = []
    stopping = asyncio.Event()

    async def load() -> None:
        while not stopping.is_set():
            statuses.append((await ask(stack, declared())).status_code)

    async def bypasses() -> bool:
        return await stack.stat(bypassed) >= 20

    async def routed_again() -> bool:
        response = await ask(stack, declared())
        return "warm;match=fingerprint" in response.headers.get_list(DECISION)

    tasks = [asyncio.create_task(load()) for _ in range(8)]
    await until(_more_than(statuses, 40), "load runs")
    await stack.stop_picker()
    await until(bypasses, "Envoy counts bypasses")
    during = await ask(stack, declared())
    assert DECISION not in during.headers
    assert sum(engine.seen != [] for engine in stack.engines) > 1
    await stack.start_picker()
    await until(routed_again, "the new picker routes")
    stopping.set()
    await asyncio.gather(*tasks)
    assert set(statuses) == {200}
    assert len(statuses) > 60


def _more_than(items: list[int], count: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return len(items) > count

    return reached


async def test_a_picker_that_hangs_delays_by_the_timeout(stack: RouterStack) -> None:
    assert stack.picker is not None
    stack.picker.send_signal(signal.SIGSTOP)
    try:
        response = await ask(stack, declared())
    finally:
        stack.picker.send_signal(signal.SIGCONT)
    assert response.status_code == 200
    assert DECISION not in response.headers
    assert response.elapsed.total_seconds() > DECISION_TIMEOUT_MS / 1000


async def test_the_picker_never_sees_credentials(stack: RouterStack) -> None:
    """A listener in the picker's place: the question has the body, and no secret of the client."""
    await stack.stop_picker()
    questions: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        questions.append(await reader.readuntil(b"}"))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(listen, "127.0.0.1", stack.decision_port)
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
    for engine in stack.engines:
        destinations = {seen.headers.get(DESTINATION) for seen in engine.seen}
        assert destinations <= {None, f"127.0.0.1:{engine.port}"}


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


async def test_other_extra_arguments_are_the_users_own(stack: RouterStack) -> None:
    body = {
        **undeclared("what is promptprefix?"),
        "vllm_xargs": {"session_id": "s"},
        "metadata": {"promptprefix": "mine"},
    }
    assert (await ask(stack, body)).status_code == 200


MALFORMED = (
    b"",
    b"{",
    b"\x00\xff\xfe",
    b"[" * 100_000,
    b'{"model": 7, "messages": "no"}',
    b"null",
)


async def test_a_malformed_body_arrives_unchanged(stack: RouterStack) -> None:
    before = await stack.metric("promptprefix_router_decisions_total", match="malformed")
    for body in MALFORMED:
        response = await stack.client.post(f"{stack.url}{CHAT}", content=body)
        assert response.status_code == 200
    seen = [request.body for engine in stack.engines for request in engine.seen]
    assert sorted(seen) == sorted(MALFORMED)
    after = await stack.metric("promptprefix_router_decisions_total", match="malformed")
    assert after == before + len(MALFORMED)


@pytest.mark.parametrize("megabytes", [5, 100])
async def test_large_bodies_pass(stack: RouterStack, megabytes: int) -> None:
    """The picker sees the first part: the header and the model still decide."""
    start = json.dumps({"model": MODEL, "messages": []})[:-1].encode() + b', "pad": "'
    body = start + b"x" * (megabytes * 1024 * 1024) + b'"}'
    response = await stack.client.post(
        f"{stack.url}{CHAT}", content=body, headers={"x-promptprefix": "support-triage"}
    )
    assert response.json() == {"engine": "b"}
    assert response.headers[DECISION] == "warm;match=header"
    (seen,) = stack.engines[1].seen
    assert (seen.size, seen.sha256) == (len(body), hashlib.sha256(body).hexdigest())


async def test_a_large_body_without_header_goes_to_the_least_loaded(stack: RouterStack) -> None:
    response = await ask(stack, undeclared("x" * 2_000_000))
    assert response.headers[DECISION] == "least-loaded;match=partial"


async def test_a_removed_endpoint_gets_nothing(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines[:2], warm="b"))
    for _ in range(9):
        await ask(stack, undeclared())
    assert counts(stack)["c"] == 0


@pytest.mark.parametrize("picker", ["up", "down"])
async def test_an_endpoint_that_is_not_ready_gets_nothing(stack: RouterStack, picker: str) -> None:
    """Not even if it is warm, or most of the pool is not ready and nobody picks."""
    await stack.publish((prefix(),), pool(stack.engines, warm="b", not_ready="bc"))
    if picker == "down":
        await stack.stop_picker()
    for _ in range(6):
        assert (await ask(stack, declared())).json() == {"engine": "a"}
    if picker == "down":
        await stack.start_picker()


async def test_another_namespace_is_not_served(stack: RouterStack) -> None:
    foreign = pool(stack.engines[:1])[0].model_copy(update={"namespace": "other"})
    await stack.publish((prefix(),), (foreign, *pool(stack.engines[1:], warm="b")))
    for _ in range(6):
        assert (await ask(stack, undeclared())).status_code == 200
    assert counts(stack)["a"] == 0


async def test_a_dead_pod_costs_no_request(stack: RouterStack) -> None:
    """The picked pod is gone, and nobody knows yet: Envoy takes another."""
    _, b, _ = stack.engines
    await b.stop()
    try:
        responses = [await ask(stack, declared()) for _ in range(5)]
        assert {r.status_code for r in responses} == {200}
        assert counts(stack)["b"] == 0
    finally:
        await b.start()


async def test_an_unhealthy_engine_is_avoided(stack: RouterStack) -> None:
    stack.engines[1].healthy = False

    async def avoided() -> bool:
        response = await ask(stack, declared())
        return "cold;match=fingerprint" in response.headers.get_list(DECISION)

    await until(avoided, "the warm engine is avoided")


async def test_the_last_routes_stay_when_the_operator_is_away(stack: RouterStack) -> None:
    """Also over a restart of the picker: Envoy keeps the endpoints of the file."""
    await stack.control.stop()
    assert (await ask(stack, declared())).json() == {"engine": "b"}
    await stack.stop_picker()
    await stack.start_picker()
    try:
        response = await ask(stack, declared())
        assert response.status_code == 200
        assert response.headers[DECISION].startswith("unrouted")
        assert len(await stack.pool()) == 3
    finally:
        await stack.control.start()


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


async def test_health_and_models_need_no_picker(stack: RouterStack) -> None:
    await stack.stop_picker()
    assert (await stack.client.get(f"{stack.url}/health")).text == "ok\n"
    assert (await stack.client.get(f"{stack.url}/v1/models")).status_code == 200
    await stack.start_picker()


async def test_an_empty_pool_is_a_clear_error(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines, not_ready="abc"))
    response = await ask(stack, declared())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_healthy_upstream"


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


async def test_the_picker_stays_small(stack: RouterStack) -> None:
    for i in range(300):
        await ask(stack, declared(f"{i}" * 1000))
    assert await stack.metric("process_resident_memory_bytes") < 120 * 1024 * 1024
