"""The operator's process against a real API server, as its own ServiceAccount; no node is needed.

The sidecars are played by the test: they prove their pod with real bound tokens and report what
they are told to hold as warm.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.cluster import Cluster, ClusterError
from promptprefix.resource import Pinning
from promptprefix.wire import (
    AUDIENCE,
    EngineState,
    Phase,
    PlacementState,
    Revision,
    RouteTable,
    SidecarState,
    SyncRequest,
    SyncResponse,
)

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "e2e" / "manifests"
SYSTEM = "promptprefix-system"
MODEL = "demo"
TEXT = "You are the keeper of a text that must not leak. " * 40
RBAC_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane with the CRD, the operator's rights and two pods that no node runs."""
    with Cluster.start(progress=print, node=False) as started:
        started.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        started.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "namespaces.yaml"))
        manifests = (MANIFESTS / "operator.yaml").read_text()
        rights = [
            each
            for each in yaml.safe_load_all(re.sub(r"\$\{\w+\}", "unused", manifests))
            if each["kind"] in RBAC_KINDS
        ]
        started.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(rights))
        for namespace, account in (("ml", "vllm"), (SYSTEM, "promptprefix-router")):
            started.kubectl("create", "serviceaccount", account, "-n", namespace)
        for index in range(2):
            _make_pod(started, f"vllm-{index}", f"10.0.0.{index + 1}")
        yield started


def _make_pod(server: Cluster, name: str, address: str) -> None:
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {"app": "vllm"}},
        "spec": {
            "serviceAccountName": "vllm",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{"name": "vllm", "image": "none", "securityContext": limits}],
        },
    }
    server.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(pod))
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    server.kubectl(
        "patch", "pod", name, "-n", "ml", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip


def token(server: Cluster, namespace: str, account: str, *arguments: str) -> str:
    return server.kubectl("create", "token", account, "-n", namespace, *arguments).strip()


def pod_token(server: Cluster, pod: str, audience: str = AUDIENCE) -> str:
    return token(
        server, "ml", "vllm", f"--audience={audience}",
        "--bound-object-kind=Pod", f"--bound-object-name={pod}",
        f"--bound-object-uid={get(server, 'pod', pod)['metadata']['uid']}",
    )  # fmt: skip


def get(server: Cluster, kind: str, name: str, namespace: str = "ml") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        server.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--show-managed-fields")
    )
    return found


@dataclass
class Operator:
    """The operator's process; ``lines`` are its logs."""

    process: asyncio.subprocess.Process
    port: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024


@asynccontextmanager
async def operator(server: Cluster, folder: Path) -> AsyncIterator[Operator]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(server))
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "PROMPTPREFIX_NAMESPACES": "ml",
        "PROMPTPREFIX_OWN_NAMESPACE": SYSTEM,
        "PROMPTPREFIX_SERVING_NAMES": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_HOST": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_PORT": "0",
        "PROMPTPREFIX_METRICS_HOST": "127.0.0.1",
        "PROMPTPREFIX_METRICS_PORT": "0",
        "PROMPTPREFIX_LOG_LEVEL": "debug",
        "PROMPTPREFIX_ROUTER_SERVICE_ACCOUNTS": f"{SYSTEM}/promptprefix-router",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "promptprefix_operator", env=environment, stderr=subprocess.PIPE
    )
    running = Operator(process)
    reading = asyncio.create_task(_read(running))
    try:
        await until(lambda: running.port > 0 or process.returncode is not None, 30)
        assert running.port > 0, running.lines
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0
        await reading


async def _read(running: Operator) -> None:
    assert running.process.stderr is not None
    async for line in running.process.stderr:
        entry = json.loads(line)
        running.lines.append(entry)
        if entry["event"] == "serving":
            running.port = entry["control_port"]


def _kubeconfig(server: Cluster) -> str:
    """Return the administrator's kubeconfig with the operator's token instead."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    user = {"token": token(server, SYSTEM, "promptprefix-operator", "--duration=1h")}
    for each in config["users"]:
        each["user"] = user
    return str(yaml.safe_dump(config))


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.1)


class Client:
    """A client that trusts the CA that the operator published."""

    def __init__(self, server: Cluster, running: Operator, bearer: str) -> None:
        authority = get(server, "configmap", "promptprefix-ca")["data"]["ca.crt"]
        self.http = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{running.port}",
            verify=ssl.create_default_context(cadata=authority),
            headers={"Authorization": f"Bearer {bearer}"},
            timeout=40,
        )

    async def routes(self) -> RouteTable:
        answer = await self.http.get("/v1/routes")
        assert answer.status_code == 200, answer.text
        return RouteTable.model_validate_json(answer.content)


@dataclass
class Sidecar:
    """Holds what it is told and counts the texts it had to fetch."""

    client: Client
    applied: Revision | None = None
    held: dict[str, PlacementState] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            try:
                answer = await self.client.http.post(
                    "/v1/sidecar/sync", content=self._question().model_dump_json()
                )
            except httpx.TransportError:
                await asyncio.sleep(0.2)
                continue
            if answer.status_code == 204:
                continue
            assert answer.status_code == 200, answer.text
            await self._apply(SyncResponse.model_validate_json(answer.content))

    async def _apply(self, answer: SyncResponse) -> None:
        for each in answer.placements:
            if each.id not in self.held:
                text = await self.client.http.get(f"/v1/content/{each.content_digest}")
                assert text.status_code == 200, text.text
                self.fetched.append(text.json()["systemInstructions"])
        self.held = {
            each.id: PlacementState(
                id=each.id,
                phase=Phase.WARM,
                token_digest=each.content_digest,
                tokens=320,
                pinned_tokens=320,
                pinned=Pinning.HARD,
            )
            for each in answer.placements
        }
        self.applied = answer.revision

    def _question(self) -> SyncRequest:
        engine = EngineState(
            healthy=True, address="203.0.113.9", port=8000, models=(MODEL,), block_size=32
        )
        state = SidecarState(engine=engine, placements=tuple(self.held.values()))
        return SyncRequest(revision=self.applied, state=state)


@asynccontextmanager
async def sidecars(server: Cluster, running: Operator) -> AsyncIterator[list[Sidecar]]:
    await until(lambda: "data" in get(server, "configmap", "promptprefix-ca"))
    found = [Sidecar(Client(server, running, pod_token(server, f"vllm-{i}"))) for i in range(2)]
    tasks = [asyncio.create_task(each.run()) for each in found]
    try:
        yield found
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in found:
            await each.client.http.aclose()


def manifest(name: str, text: str = TEXT, **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "promptprefix.dev/v1alpha1",
            "kind": "PromptPrefix",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {
                "model": MODEL,
                "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
                "content": {"inline": {"systemInstructions": text}},
            }
            | spec,
        }
    )


def apply(server: Cluster, body: str) -> None:
    server.kubectl("apply", "--server-side", "-f", "-", input=body)


def conditions(server: Cluster, name: str) -> dict[str, dict[str, Any]]:
    status = get(server, "promptprefix", name).get("status", {})
    return {each["type"]: each for each in status.get("conditions", [])}


def ready(server: Cluster, name: str) -> tuple[str, str, int]:
    found = conditions(server, name).get("Ready", {})
    return found.get("status", ""), found.get("reason", ""), found.get("observedGeneration", 0)


def gone(server: Cluster, name: str) -> bool:
    try:
        get(server, "promptprefix", name)
    except ClusterError as error:
        return "NotFound" in str(error)
    return False


async def test_life_of_a_prefix(server: Cluster, tmp_path: Path) -> None:
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        apply(server, manifest("triage"))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 1))
        found = get(server, "promptprefix", "triage")
        status = found["status"]
        assert (status["warm"], status["tokens"], status["blocks"]) == ("2/2", 320, 10)
        assert status["pinnedPods"] == 2
        assert {k: v["status"] for k, v in conditions(server, "triage").items()} == {
            "Ready": "True",
            "Active": "True",
            "Warm": "True",
            "Reconciling": "False",
            "Stalled": "False",
        }
        owners = {
            (each["manager"], each["operation"], each.get("subresource"))
            for each in found["metadata"]["managedFields"]
        }
        assert ("promptprefix-operator", "Apply", "status") in owners

        apply(server, manifest("triage", text=f"Second. {TEXT}"))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 2))
        await until(lambda: all(len(each.held) == 1 for each in fakes))
        assert [each.fetched for each in fakes] == [[TEXT, f"Second. {TEXT}"]] * 2

        apply(server, manifest("triage", text=f"Second. {TEXT}", suspend=True))
        await until(lambda: ready(server, "triage") == ("True", "Suspended", 3))
        assert [each.held for each in fakes] == [{}, {}]
        apply(server, manifest("triage", text=f"Second. {TEXT}", suspend=False))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 4))

        annotations = json.dumps(get(server, "promptprefix", "triage")["metadata"]["annotations"])
        assert "must not leak" not in annotations
        server.kubectl("delete", "promptprefix", "triage", "-n", "ml", "--wait=false")
        await until(lambda: gone(server, "triage"))
        assert [each.held for each in fakes] == [{}, {}]
        events = server.kubectl("get", "events", "-n", "ml", "-o", "json")
        reasons = [
            each["reason"]
            for each in json.loads(events)["items"]
            if each["involvedObject"]["name"] == "triage"
        ]
        assert {"Warming", "Warm", "Suspended"} <= set(reasons)
        resident = running.resident_mb()
        print(f"operator: {resident:.0f} MB resident")
        assert resident <= 150
    log = json.dumps(running.lines)
    assert "must not leak" not in events + log
    assert not [each for each in running.lines if each["level"] in ("error", "critical")]


async def test_who_may_ask_what(server: Cluster, tmp_path: Path) -> None:
    question = SyncRequest(
        state=SidecarState(engine=EngineState(healthy=True, address="", port=1))
    ).model_dump_json()
    router = token(server, SYSTEM, "promptprefix-router", f"--audience={AUDIENCE}")
    async with operator(server, tmp_path) as running, sidecars(server, running):
        apply(server, manifest("guarded"))
        await until(lambda: ready(server, "guarded")[0] == "True")
        cases = [
            ("POST", "/v1/sidecar/sync", "nonsense", 401),
            ("POST", "/v1/sidecar/sync", pod_token(server, "vllm-0", "other"), 401),
            (
                "POST",
                "/v1/sidecar/sync",
                token(server, "ml", "vllm", f"--audience={AUDIENCE}"),
                403,
            ),
            ("POST", "/v1/sidecar/sync", router, 403),
            ("GET", "/v1/routes", pod_token(server, "vllm-0"), 403),
            ("GET", f"/v1/content/{'0' * 64}", pod_token(server, "vllm-0"), 403),
            ("GET", "/v1/routes?term=99999999999&number=1", router, 409),
            ("GET", "/v1/routes?term=x&number=1", router, 400),
        ]
        for method, path, bearer, expected in cases:
            client = Client(server, running, bearer)
            answer = await client.http.request(
                method, path, content=question if method == "POST" else None
            )
            assert (path, answer.status_code) == (path, expected), answer.text
            assert answer.json()["message"]
            await client.http.aclose()
        client = Client(server, running, router)
        table = await client.routes()
        await client.http.aclose()
        assert {(e.pod, e.address, e.port, e.ready) for e in table.endpoints} == {
            ("vllm-0", "10.0.0.1", 8000, True),
            ("vllm-1", "10.0.0.2", 8000, True),
        }
        [prefix] = table.prefixes
        assert (prefix.name, prefix.tenant) == ("guarded", "ml")
        assert all(e.warm == prefix.token_digests != () for e in table.endpoints)
        server.kubectl("delete", "promptprefix", "guarded", "-n", "ml", "--wait=false")
        await until(lambda: gone(server, "guarded"))


async def test_content_comes_late_and_a_restart_moves_nothing(
    server: Cluster, tmp_path: Path
) -> None:
    mapped = manifest("mapped", content={"configMapRef": {"name": "texts"}})
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        apply(server, mapped)
        await until(lambda: ready(server, "mapped")[:2] == ("False", "ContentNotFound"))
        assert conditions(server, "mapped")["Stalled"]["status"] == "False"
        server.kubectl(
            "create", "configmap", "texts", "-n", "ml", f"--from-literal=systemInstructions={TEXT}"
        )
        await until(lambda: ready(server, "mapped") == ("True", "Warm", 1))
        before = get(server, "promptprefix", "mapped")["status"]
        term = fakes[0].applied.term if fakes[0].applied else 0

    async with operator(server, tmp_path) as running:
        for each in fakes:
            each.client = Client(
                server, running, str(each.client.http.headers["authorization"])[7:]
            )
        tasks = [asyncio.create_task(each.run()) for each in fakes]
        await until(
            lambda: all(each.applied is not None and each.applied.term > term for each in fakes)
        )
        assert ready(server, "mapped") == ("True", "Warm", 1)
        assert [each.fetched for each in fakes] == [[TEXT], [TEXT]]
        after = get(server, "promptprefix", "mapped")["status"]
        assert before == after

        server.kubectl(
            "patch", "configmap", "texts", "-n", "ml", "--type=merge",
            "-p", json.dumps({"data": {"toolDefinitions": "[{]"}}),
        )  # fmt: skip
        await until(lambda: ready(server, "mapped")[:2] == ("False", "InvalidTools"))
        assert conditions(server, "mapped")["Stalled"]["status"] == "True"
        assert all(len(each.held) == 1 for each in fakes), "the text before it stays warm"
        server.kubectl("delete", "promptprefix", "mapped", "-n", "ml", "--wait=false")
        await until(lambda: gone(server, "mapped"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in fakes:
            await each.client.http.aclose()
