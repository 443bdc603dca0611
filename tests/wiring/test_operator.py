"""The whole operator in process: kopf and the control API against a mock of the API server."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
import jsonpatch
import pytest
from kmock import KubernetesEmulator, Server
from kubernetes.aio.client.configuration import Configuration

from promptprefix.resource import API_VERSION, KIND, Pinning
from promptprefix.wire import (
    AUDIENCE,
    HARD_PINS,
    EngineState,
    Phase,
    PlacementState,
    Revision,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_operator.service import Operator
from promptprefix_operator.settings import Settings

SECRET_TEXT = "You are the keeper of a text that must not leak."
NEW_TEXT = "You are another keeper of another text that must not leak."
MODEL = "m"
PREFIXES = "promptprefix.dev/v1alpha1/promptprefixes"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@attrs.define(kw_only=True)
class ApiServer(KubernetesEmulator):
    """The mock, with versions and generations, JSON patches and token reviews.

    Every token ``<namespace>/<account>/<pod>`` is valid.
    """

    version: int = 100

    async def _handle(self, request: Any) -> aiohttp.web.StreamResponse:
        if request.url.path == TOKEN_REVIEWS:
            return aiohttp.web.json_response(_reviewed(request.data))
        if request.method.value.upper() in ("POST", "PUT", "PATCH") and request.resource:
            self.version += 1
            try:
                object.__setattr__(request, "data", self._settled(request))
            except jsonpatch.JsonPatchTestFailed:
                return aiohttp.web.json_response({"kind": "Status", "code": 422}, status=422)
        if request.method.value.upper() == "PUT":  # only Secrets are replaced, and none is watched
            stored = self._objects[request.resource, request.namespace, request.name]
            stored.patch(request.data)
            return aiohttp.web.json_response(stored.raw)
        return await super()._handle(request)

    def _settled(self, request: Any) -> Any:
        """Return the change as a merge patch that also moves version and generation."""
        key = (request.resource, request.namespace, request.name)
        known = self._objects[key] if key in self._objects else None
        old = copy.deepcopy(dict(known.raw)) if known is not None and not known.deleted else {}
        data = request.data
        if isinstance(data, list):
            new = jsonpatch.apply_patch(old, data)
            data = {"metadata": {"finalizers": new["metadata"].get("finalizers", [])}}
        data = copy.deepcopy(data)
        metadata = data.setdefault("metadata", {})
        metadata["resourceVersion"] = str(self.version)
        if "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{self.version}"
        if "spec" in data:
            metadata["generation"] = int(old.get("metadata", {}).get("generation", 0)) + 1
        return data


def _reviewed(review: Any) -> dict[str, Any]:
    namespace, account, pod = [*review["spec"]["token"].split("/"), "", ""][:3]
    extra = {"pod-name": [pod], "pod-uid": [f"uid-{pod}"]} if pod else {}
    return {
        "status": {
            "authenticated": bool(account),
            "audiences": [AUDIENCE],
            "user": {
                "username": f"system:serviceaccount:{namespace}:{account}",
                "extra": {f"authentication.kubernetes.io/{k}": v for k, v in extra.items()},
            },
        }
    }


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server, Server(server):
        for name, kind in (("pods", "Pod"), ("configmaps", "ConfigMap"), ("events", "Event")):
            server.resources[f"v1/{name}"] = {
                "kind": kind,
                "namespaced": True,
                "verbs": ["list", "watch", "patch", "create", "get"],
            }
        # kopf asks for the existence of these two kinds, never for an object.
        server.resources["v1/namespaces"] = {"kind": "Namespace", "namespaced": False}
        server.resources["apiextensions.k8s.io/v1/customresourcedefinitions"] = {
            "kind": "CustomResourceDefinition",
            "namespaced": False,
        }
        server.resources[PREFIXES] = {
            "kind": KIND,
            "namespaced": True,
            "verbs": ["list", "watch", "patch", "get"],
            "subresources": ["status"],
        }
        server.objects["v1/secrets", "system", "promptprefix-operator-tls"] = {
            "metadata": {"name": "promptprefix-operator-tls", "namespace": "system"}
        }
        for namespace in ("ml", "system"):
            server.objects["v1/configmaps", namespace, "promptprefix-ca"] = {
                "metadata": {"name": "promptprefix-ca", "namespace": namespace, "uid": namespace}
            }
        server.objects["v1/pods", "ml", "vllm-0"] = pod("vllm-0")
        yield server


def pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "labels": {"app": "v"}},
        "status": {"podIP": "10.0.0.7", "phase": "Running"},
    }


def resource(text: str = SECRET_TEXT, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "triage", "namespace": "ml", "uid": "11-22", "generation": 1},
        "spec": {
            "model": MODEL,
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": text}},
            "lint": {"policy": "Off"},
        }
        | spec,
    }


@asynccontextmanager
async def running(api: ApiServer) -> AsyncIterator[Operator]:
    settings = Settings(
        namespaces=("ml",),
        own_namespace="system",
        serving_names=("127.0.0.1",),
        listen_host="127.0.0.1",
        listen_port=0,
        metrics_host="127.0.0.1",
        metrics_port=0,
        router_service_accounts=("system/router",),
        resync_seconds=1.0,
    )
    operator = Operator(settings, Configuration(host=str(api.url).rstrip("/")))
    task = asyncio.create_task(operator.run())
    ready = asyncio.create_task(operator.ready.wait())
    await asyncio.wait({task, ready}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    try:
        assert operator.ready.is_set()
        yield operator
    finally:
        operator.stop.set()
        ready.cancel()
        await asyncio.wait_for(task, 10)


class Client:
    """A client of the control API that trusts the published CA."""

    def __init__(self, api: ApiServer, operator: Operator, token: str) -> None:
        secret = api.objects["v1/secrets", "system", "promptprefix-operator-tls"]
        authority = base64.b64decode(secret["data"]["ca.crt"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        self._url = f"https://127.0.0.1:{operator.control_port}"
        self._headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.request(method, self._url + path, data=body, ssl=self._context) as response,
        ):
            return response.status, await response.text()


class FakeSidecar:
    """Reports whatever it is told to hold as warm, one question after another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.applied: Revision | None = None
        self.held: dict[str, PlacementState] = {}
        self.texts: dict[str, str] = {}

    async def run(self) -> None:
        while True:
            status, text = await self._client.ask(
                "POST", "/v1/sidecar/sync", self.question().model_dump_json()
            )
            if status == 204:
                continue
            assert status == 200, text
            answer = SyncResponse.model_validate_json(text)
            held = {}
            for each in answer.placements:
                if each.content_digest not in self.texts:
                    code, payload = await self._client.ask(
                        "GET", f"/v1/content/{each.content_digest}"
                    )
                    assert code == 200, payload
                    self.texts[each.content_digest] = json.loads(payload)["systemInstructions"]
                held[each.id] = PlacementState(
                    id=each.id,
                    phase=Phase.WARM,
                    token_digest=each.content_digest,
                    tokens=320,
                    pinned_tokens=320,
                    pinned=Pinning.HARD,
                )
            self.held, self.applied = held, answer.revision

    def question(self) -> SyncRequest:
        engine = EngineState(
            healthy=True,
            address="203.0.113.9",
            port=8000,
            models=(MODEL,),
            epoch="e",
            block_size=32,
            capabilities=(HARD_PINS,),
        )
        state = SidecarState(engine=engine, placements=tuple(self.held.values()))
        return SyncRequest(revision=self.applied, state=state)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def condition_of(api: ApiServer, kind: str) -> tuple[str, str]:
    found = api.objects[PREFIXES, "ml", "triage"].get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


def exists(api: ApiServer) -> bool:
    return not api.objects[PREFIXES, "ml", "triage"].deleted


async def send(api: ApiServer, method: str, path: str, body: Any = None) -> None:
    url = str(api.url).rstrip("/") + path
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as found:
        assert found.status < 300, await found.text()


OBJECT = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"


async def test_life_of_a_prefix_and_no_annotation_with_its_text(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(api) as operator, asyncio.TaskGroup() as group:
        sidecar = FakeSidecar(Client(api, operator, "ml/vllm/vllm-0"))
        polling = group.create_task(sidecar.run())
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        status = api.objects[PREFIXES, "ml", "triage"]["status"]
        assert (status["warm"], status["tokens"], status["blocks"]) == ("1/1", 320, 10)
        assert list(sidecar.texts.values()) == [SECRET_TEXT]

        await send(api, "PATCH", f"{OBJECT}/triage", {"spec": resource(NEW_TEXT)["spec"]})
        await until(lambda: list(sidecar.texts.values()) == [SECRET_TEXT, NEW_TEXT])
        await until(lambda: len(sidecar.held) == 1 and condition_of(api, "Ready")[0] == "True")

        await send(api, "DELETE", f"{OBJECT}/triage")
        await until(lambda: not exists(api))
        assert sidecar.held == {}
        polling.cancel()

    patches = [each for each in api if each.method.value.upper() == "PATCH"]
    assert len(patches) >= 4
    for request in patches:
        if "annotations" in request.text or isinstance(request.data, list):
            assert SECRET_TEXT not in request.text
            assert NEW_TEXT not in request.text
    assert any("annotations" in request.text for request in patches)
    events = [each.data for each in api if each.resource and each.resource.plural == "events"]
    assert [event["reason"] for event in events][-1] == "Warm"
    assert "must not leak" not in json.dumps(events) + caplog.text
