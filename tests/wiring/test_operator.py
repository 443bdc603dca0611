"""The whole operator in process: kopf and the control API against a mock of the API server."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from kmock import Server
from kubernetes.aio.client.configuration import Configuration

from promptprefix.resource import API_VERSION, KIND, Pinning
from promptprefix.wire import (
    EngineState,
    Phase,
    PlacementState,
    Revision,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_operator.leadership import Times
from promptprefix_operator.service import Operator
from promptprefix_operator.settings import Settings

from .fake_kubernetes import ApiServer

SECRET_TEXT = "You are the keeper of a text that must not leak."
NEW_TEXT = "You are another keeper of another text that must not leak."
MODEL = "m"
PREFIXES = "promptprefix.dev/v1alpha1/promptprefixes"
LEASES = "coordination.k8s.io/v1/leases"
OBJECT = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"
PASSES = "promptprefix_operator_plan_seconds_count"


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
        server.resources[LEASES] = {"kind": "Lease", "namespaced": True, "verbs": ["create"]}
        server.objects["v1/secrets", "system", "promptprefix-operator-tls"] = {
            "metadata": {"name": "promptprefix-operator-tls", "namespace": "system", "uid": "tls"}
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
async def running(api: ApiServer, **changed: Any) -> AsyncIterator[Operator]:
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
    ).model_copy(update=changed)
    operator = Operator(
        settings, Configuration(host=str(api.url).rstrip("/")), times=Times(lease=3, retry=0.05)
    )
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
        self._url = f"https://127.0.0.1:{operator.ports.control}"
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
        self.wanted: set[str] = set()
        self.stubborn = False
        self._changed = asyncio.Event()

    def release(self) -> None:
        """Let go of what is no longer wanted."""
        self.stubborn = False
        self.held = {id_: state for id_, state in self.held.items() if id_ in self.wanted}
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            asking = asyncio.create_task(
                self._client.ask("POST", "/v1/sidecar/sync", self.question().model_dump_json())
            )
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({asking, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if not asking.done():
                asking.cancel()
                continue
            status, text = asking.result()
            if status == 204:
                continue
            assert status == 200, text
            answer = SyncResponse.model_validate_json(text)
            self.wanted = {each.id for each in answer.placements}
            held = dict(self.held) if self.stubborn else {}
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
            healthy=True, address="203.0.113.9", port=8000, models=(MODEL,), block_size=32
        )
        state = SidecarState(engine=engine, placements=tuple(self.held.values()))
        return SyncRequest(revision=self.applied, state=state)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the mock has no event for it
            await asyncio.sleep(0.01)


def condition_of(api: ApiServer, kind: str, name: str = "triage") -> tuple[str, str]:
    found = api.objects[PREFIXES, "ml", name].get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


def exists(api: ApiServer) -> bool:
    return not api.objects[PREFIXES, "ml", "triage"].deleted


async def send(api: ApiServer, method: str, path: str, body: Any = None) -> None:
    url = str(api.url).rstrip("/") + path
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as found:
        assert found.status < 300, await found.text()


@asynccontextmanager
async def polling(api: ApiServer, operator: Operator) -> AsyncIterator[FakeSidecar]:
    sidecar = FakeSidecar(Client(api, operator, "ml/vllm/vllm-0"))
    task = asyncio.create_task(sidecar.run())
    try:
        yield sidecar
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_life_of_a_prefix_and_nothing_is_written_but_its_status(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(api, version_idle_seconds=1.0) as operator,
        polling(api, operator) as sidecar,
    ):
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        status = api.objects[PREFIXES, "ml", "triage"]["status"]
        assert (status["warm"], status["tokens"], status["blocks"]) == ("1/1", 320, 10)
        assert list(sidecar.texts.values()) == [SECRET_TEXT]

        await send(api, "PATCH", f"{OBJECT}/triage", {"spec": resource(NEW_TEXT)["spec"]})
        await until(lambda: list(sidecar.texts.values()) == [SECRET_TEXT, NEW_TEXT])
        await until(lambda: len(sidecar.held) == 1 and condition_of(api, "Ready")[0] == "True")

        await send(api, "DELETE", f"{OBJECT}/triage")
        await until(lambda: sidecar.held == {})

    patches = [each for each in api if each.method.value.upper() == "PATCH"]
    from_operator = [each for each in patches if "spec" not in json.loads(each.text)]
    assert {(str(each.resource.plural), each.subresource) for each in from_operator} == {
        ("promptprefixes", "status"),
        ("configmaps", None),
    }
    for request in from_operator:
        assert "must not leak" not in request.text
    events = [each.data for each in api if each.resource and each.resource.plural == "events"]
    assert [event["reason"] for event in events] == ["Warming", "Warm", "Warming", "Warm"]
    assert "must not leak" not in json.dumps(events) + caplog.text


async def test_a_status_that_is_right_is_not_written_again(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        writes = status_writes(api)
        passes = await counted(operator, PASSES)
        while await counted(operator, PASSES) < passes + 3:  # noqa: ASYNC110 - three resyncs
            await asyncio.sleep(0.05)
        assert status_writes(api) == writes
        assert await counted(operator, "promptprefix_apply_to_warm_seconds_count") == 1


def status_writes(api: ApiServer) -> int:
    return len([each for each in api if each.subresource == "status"])


async def counted(operator: Operator, name: str) -> float:
    url = f"http://127.0.0.1:{operator.ports.metrics}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


async def test_a_deletion_is_over_at_once_and_reaches_the_sidecar(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        sidecar.stubborn = True
        await send(api, "DELETE", f"{OBJECT}/triage")
        assert not exists(api)
        await until(lambda: sidecar.wanted == set())


async def test_what_was_deleted_without_an_operator_is_released_by_the_next(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        held = sidecar.held
    await send(api, "DELETE", f"{OBJECT}/triage")
    async with running(api) as operator:
        later = FakeSidecar(Client(api, operator, "ml/vllm/vllm-0"))
        later.held = held
        task = asyncio.create_task(later.run())
        await until(lambda: later.applied is not None and not later.held)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_text_may_come_late_and_be_wrong(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource(content={"configMapRef": {"name": "texts"}}))
        await until(lambda: condition_of(api, "Ready") == ("False", "ContentNotFound"))
        config_map = {
            "metadata": {"name": "texts", "namespace": "ml", "uid": "cm"},
            "data": {"toolDefinitions": "[{]"},
        }
        await send(api, "POST", "/api/v1/namespaces/ml/configmaps", config_map)
        await until(lambda: condition_of(api, "Stalled") == ("True", "InvalidTools"))


async def test_one_bad_resource_does_not_block_another(api: ApiServer) -> None:
    bad = resource(content={"inline": {"unknown": SECRET_TEXT}})
    bad["metadata"] |= {"name": "bad", "uid": "33-44"}
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, bad)
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        await until(lambda: condition_of(api, "Ready", "bad") == ("False", "InvalidSpec"))
        message = repr(api.objects[PREFIXES, "ml", "bad"].raw["status"])
        assert "spec.content.inline.unknown" in message
        assert SECRET_TEXT not in message
