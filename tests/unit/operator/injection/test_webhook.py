"""The HTTP side: admission reviews in, admission reviews out."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from promptprefix_operator.injection.webhook import (
    MAX_BODY_BYTES,
    InjectionMetrics,
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
