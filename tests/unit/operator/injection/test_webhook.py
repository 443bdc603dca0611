"""The HTTP side: admission reviews in, admission reviews out."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from promptprefix_operator.injection import webhook
from promptprefix_operator.injection.injector import Injection
from promptprefix_operator.injection.webhook import (
    MAX_BODY_BYTES,
    InjectionMetrics,
    Limits,
    injection_application,
)

from . import pods
from .pods import OPTIONS, Json, container, patched, pod

Client = TestClient[Any, Any]
PATH = "/v1/inject"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def client(registry: CollectorRegistry) -> AsyncIterator[Client]:
    app = injection_application(OPTIONS, InjectionMetrics(registry))
    async with TestClient(TestServer(app)) as client:
        yield client


def review(object_: Json | None, **request: Any) -> Json:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "ml",
            "object": object_,
            **request,
        },
    }


async def ask(client: Client, body: Json) -> Json:
    async with client.post(PATH, json=body) as response:
        assert response.status == 200
        answer: Json = await response.json()
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == body["request"]["uid"]
    assert answer["response"]["allowed"] is True
    return dict(answer["response"])


def count(registry: CollectorRegistry, result: str) -> float | None:
    name = "promptprefix_operator_injections_total"
    return registry.get_sample_value(name, {"result": result})


async def test_a_pod_is_patched(client: Client, registry: CollectorRegistry) -> None:
    before = pods.llm_d()
    answer = await ask(client, review(before))
    assert answer["patchType"] == "JSONPatch"
    operations = json.loads(base64.b64decode(answer["patch"]))
    after = patched(before, operations)
    assert after["spec"]["initContainers"][-1]["name"] == "promptprefix-sidecar"
    assert "warnings" not in answer
    assert [count(registry, each) for each in ("hard", "soft", "none")] == [1, 0, 0]
    seconds = registry.get_sample_value("promptprefix_operator_injection_seconds_count")
    assert seconds == 1


async def test_a_shortfall_is_a_warning(client: Client, registry: CollectorRegistry) -> None:
    answer = await ask(client, review(pods.plain()))
    (warning,) = answer["warnings"]
    assert warning.startswith("promptprefix: Container 'vllm'")
    assert "patch" in answer
    assert count(registry, "soft") == 1


async def test_a_pod_that_declines_gets_no_patch(client: Client) -> None:
    answer = await ask(client, review(pod(annotations={"promptprefix.dev/inject": "false"})))
    assert not {"patch", "patchType"} & answer.keys()


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "ephemeralcontainers"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
    ],
)
async def test_other_questions_are_allowed(
    client: Client, registry: CollectorRegistry, request_: Json
) -> None:
    answer = await ask(client, review(pods.llm_d(), **request_))
    assert answer.keys() == {"uid", "allowed"}
    assert count(registry, "hard") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        json.dumps({**review(None), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps({**review(None), "kind": "Pod"}).encode(),
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).encode(),
        json.dumps(review("sk-secret")).encode(),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_review_is_refused(client: Client, body: bytes) -> None:
    async with client.post(PATH, data=body) as response:
        assert response.status == 400
        assert "sk-secret" not in await response.text()


async def test_a_body_beyond_the_limit_is_refused(client: Client) -> None:
    async with client.post(PATH, data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1))) as response:
        assert response.status == 413


async def test_a_broken_pod_is_allowed(client: Client) -> None:
    answer = await ask(client, review({"spec": {"containers": [{"image": "sk-secret"}]}}))
    assert "patch" not in answer
    assert answer["warnings"] == ["promptprefix: The pod can't be read: spec.containers.0.name."]


async def test_no_value_of_a_pod_is_logged(client: Client) -> None:
    engine = container(args=["--api-key", "sk-secret", "--port", "sk-port"], env=[])
    with structlog.testing.capture_logs() as lines:
        await ask(client, review(pod(engine)))
        await ask(client, review(pod({"name": "x", "image": "sk-image", "command": ["sk-run"]})))
    assert [line["result"] for line in lines] == ["none", "none"]
    assert "sk-" not in str(lines)


async def test_health(client: Client) -> None:
    async with client.get("/healthz") as response:
        assert response.status == 200


@asynccontextmanager
async def serving(limits: Limits) -> AsyncIterator[tuple[Client, list[str]]]:
    """Serve within ``limits``; the list grows by each question that has arrived."""
    arrived: list[str] = []

    @web.middleware
    async def note(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        arrived.append(request.path)
        response: web.StreamResponse = await handler(request)
        return response

    app = injection_application(OPTIONS, InjectionMetrics(CollectorRegistry()), limits=limits)
    app.middlewares.append(note)
    async with TestClient(TestServer(app)) as client:
        yield client, arrived


class Gate:
    """Lets bodies through together, and counts how many are being read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.reading = self.most = 0
        read = web.Request.read

        async def gated(request: web.Request) -> bytes:
            self.reading += 1
            self.most = max(self.most, self.reading)
            await self.open.wait()
            body = await read(request)
            self.reading -= 1
            return body

        monkeypatch.setattr(web.Request, "read", gated)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def test_only_so_many_questions_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with serving(Limits(reviews=2, body_seconds=60)) as (client, arrived):
        asked = [asyncio.create_task(ask(client, review(pods.llm_d()))) for _ in range(6)]
        await until(lambda: len(arrived) == 6)
        assert gate.reading == 2
        gate.open.set()
        answers = await asyncio.gather(*asked)
    assert gate.most == 2
    assert all("patch" in answer for answer in answers)


async def test_others_run_between_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    seen: list[str] = []
    decide = webhook._decide

    def noted(*arguments: Any) -> Injection | None:
        seen.append("decision")
        return decide(*arguments)

    async def turns() -> None:
        while True:
            seen.append("turn")
            await asyncio.sleep(0)

    monkeypatch.setattr(webhook, "_decide", noted)
    async with serving(Limits(reviews=4, body_seconds=60)) as (client, _):
        asked = [asyncio.create_task(ask(client, review(pods.llm_d()))) for _ in range(4)]
        await until(lambda: gate.reading == 4)
        others = asyncio.create_task(turns())
        gate.open.set()
        await asyncio.gather(*asked)
        others.cancel()
    assert seen.count("decision") == 4
    assert ("decision", "decision") not in set(pairwise(seen))


async def test_a_body_that_does_not_come_gives_its_place_back() -> None:
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with serving(Limits(reviews=1, body_seconds=0.05)) as (client, arrived):
        stuck = asyncio.create_task(client.post(PATH, data=slow()))
        await until(lambda: len(arrived) == 1)
        assert "patch" in await ask(client, review(pods.llm_d()))
        response = await stuck
        assert response.status == 408
        response.close()
