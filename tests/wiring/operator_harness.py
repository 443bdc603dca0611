"""The operator in process against a mock of the API server, and a sidecar that obeys it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kmock import Server
from kubernetes.aio.client.configuration import Configuration

from promptprefix.resource import API_VERSION, KIND, Pinning
from promptprefix.wire import (
    EngineState,
    Phase,
    Placement,
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


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
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
        settings, Configuration(host=str(api.url).rstrip("/")), times=Times(lease=15, retry=0.05)
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
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done, "the operator does not end"
        await task


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
    """Does what it is told and reports that, one question after another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.applied: Revision | None = None
        self.held: dict[str, PlacementState] = {}
        self.texts: dict[str, str] = {}
        self.salts: dict[str, str] = {}
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
                await self._fetch(each)
                held[each.id] = obeyed(each)
            self.held, self.applied = held, answer.revision

    async def _fetch(self, placement: Placement) -> None:
        digest = placement.content_digest
        if digest not in self.texts:
            code, payload = await self._client.ask("GET", f"/v1/content/{digest}")
            assert code == 200, payload
            self.texts[digest] = json.loads(payload)["systemInstructions"]
        if placement.salted and placement.id not in self.salts:
            code, payload = await self._client.ask("GET", f"/v1/salts/{placement.id}")
            assert code == 200, payload
            self.salts[placement.id] = json.loads(payload)["salt"]

    def question(self) -> SyncRequest:
        engine = EngineState(
            healthy=True, address="203.0.113.9", port=8000, models=(MODEL,), block_size=32
        )
        state = SidecarState(engine=engine, placements=tuple(self.held.values()))
        return SyncRequest(revision=self.applied, state=state)


def obeyed(placement: Placement) -> PlacementState:
    """Return the state of a placement when what it asks for is done."""
    if placement.release is not None:
        return PlacementState(id=placement.id, phase=Phase.RELEASED, released=placement.release)
    return PlacementState(
        id=placement.id,
        phase=Phase.WARM,
        token_digest=placement.content_digest,
        tokens=320,
        pinned_tokens=320,
        pinned=Pinning.HARD,
    )


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the mock has no event for it
            await asyncio.sleep(0.01)


async def counted(operator: Operator, name: str) -> float:
    url = f"http://127.0.0.1:{operator.ports.metrics}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


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
