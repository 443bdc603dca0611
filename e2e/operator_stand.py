"""The operator's process beside a real API server, as its own ServiceAccount; no node is needed.

The sidecars are played: they prove their pod with real bound tokens, report what they are told
to hold as warm and let go what they are told to release.
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
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e.charts.render import Object, render
from e2e.cluster import Cluster
from e2e.nodeless_pod import pod_manifest, running_status
from promptprefix.resource import Pinning
from promptprefix.wire import (
    AUDIENCE,
    EngineState,
    Phase,
    Placement,
    PlacementState,
    Revision,
    RouteTable,
    SidecarState,
    SyncRequest,
    SyncResponse,
)

ROOT = Path(__file__).parents[1]
SYSTEM = "promptprefix-system"
MODEL = "demo"
TEXT = "You are the keeper of a text that must not leak. " * 40
OPERATOR = f"--serviceaccount={SYSTEM}:promptprefix-operator"
RBAC_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
FILLED_KINDS = ("Secret", "ConfigMap")


@contextmanager
def control_plane(pods: int = 2, secrets: Collection[str] = ()) -> Iterator[Cluster]:
    """A control plane with the CRD, the operator's rights and ``pods`` that no node runs.

    ``secrets``: names of those that the operator may get.
    """
    with Cluster.start(progress=print, node=False) as started:
        started.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for namespace in (SYSTEM, "ml"):
            apply(started, json.dumps(_namespace(namespace)))
        for each in installed("ml", RBAC_KINDS + FILLED_KINDS, secrets):
            apply(started, json.dumps(each))
        started.kubectl("create", "serviceaccount", "vllm", "-n", "ml")
        for index in range(pods):
            make_pod(started, f"vllm-{index}", f"10.0.0.{index + 1}")
        yield started


def installed(served: str, kinds: Collection[str], secrets: Collection[str] = ()) -> list[Object]:
    """Return what the chart installs for a served namespace: rights, and what is filled later."""
    values = {"namespaces": [served], "contentSecrets": {served: list(secrets)} if secrets else {}}
    return [
        each for each in render("promptprefix", values, namespace=SYSTEM) if each["kind"] in kinds
    ]


def _namespace(name: str) -> Object:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def make_pod(
    server: Cluster, name: str, address: str, labels: Mapping[str, str] | None = None
) -> None:
    apply(server, json.dumps(pod_manifest("ml", name, labels or {"app": "vllm"})))
    server.kubectl(
        "patch", "pod", name, "-n", "ml", "--subresource=status", "--type=merge",
        "-p", json.dumps(running_status(address)),
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
    metrics_port: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [each for each in self.lines if each["level"] in ("error", "critical")]

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024

    async def health(self, path: str) -> tuple[int, str]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self.metrics_port}{path}")
        return answer.status_code, answer.text

    async def metric(self, series: str) -> float | None:
        lines = (await self.health("/metrics"))[1].splitlines()
        return next((float(x.rpartition(" ")[2]) for x in lines if x.startswith(series)), None)


@asynccontextmanager
async def process(
    server: Cluster, folder: Path, namespaces: str = "ml", **settings: str
) -> AsyncIterator[Operator]:
    """Run the operator, whatever becomes of it."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(server))
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "PROMPTPREFIX_NAMESPACES": namespaces,
        "PROMPTPREFIX_OWN_NAMESPACE": SYSTEM,
        "PROMPTPREFIX_SERVING_NAMES": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_HOST": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_PORT": "0",
        "PROMPTPREFIX_METRICS_HOST": "127.0.0.1",
        "PROMPTPREFIX_METRICS_PORT": "0",
        "PROMPTPREFIX_LOG_LEVEL": "debug",
        "PROMPTPREFIX_ROUTER_SERVICE_ACCOUNTS": f"{SYSTEM}/promptprefix-router",
    } | {f"PROMPTPREFIX_{name}": value for name, value in settings.items()}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "promptprefix_operator", env=environment, stderr=subprocess.PIPE
    )
    running = Operator(started)
    reading = asyncio.create_task(_read(running))
    try:
        yield running
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGTERM)
        await asyncio.wait_for(started.wait(), 15)
        await reading


@asynccontextmanager
async def operator(
    server: Cluster, folder: Path, namespaces: str = "ml", **settings: str
) -> AsyncIterator[Operator]:
    """Run the operator from its being ready to its end without an error."""
    async with process(server, folder, namespaces, **settings) as running:
        ended = running.process
        await until(lambda: running.port > 0 or ended.returncode is not None, 30)
        assert running.port > 0, running.lines
        yield running
    assert ended.returncode == 0


async def _read(running: Operator) -> None:
    assert running.process.stderr is not None
    async for line in running.process.stderr:
        entry = _entry(line)
        running.lines.append(entry)
        if entry["event"] == "serving":
            running.port, running.metrics_port = entry["control_port"], entry["metrics_port"]


def _entry(line: bytes) -> dict[str, Any]:
    """Return a line of the log; what Python prints at its end is no JSON."""
    if line.startswith(b"{"):
        found: dict[str, Any] = json.loads(line)
        return found
    return {"event": line.decode().rstrip(), "level": "critical"}


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
    """Holds what it is told and counts the texts and salts it had to fetch."""

    client: Client
    applied: Revision | None = None
    held: dict[str, PlacementState] = field(default_factory=dict)
    failed_open: bool = False
    budget_blocks: int = 1_000
    fetched: list[str] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            try:
                answer = await self.client.http.post(
                    "/v1/sidecar/sync", content=self._question().model_dump_json()
                )
                if answer.status_code == 204:
                    continue
                assert answer.status_code == 200, answer.text
                await self._apply(SyncResponse.model_validate_json(answer.content))
            except httpx.TransportError:  # what was not taken in is told again
                await asyncio.sleep(0.2)

    async def _apply(self, answer: SyncResponse) -> None:
        for each in answer.placements:
            if each.id not in self.held:
                await self._fetch(each)
        self.held = {each.id: _obeyed(each) for each in answer.placements}
        self.applied = answer.revision

    async def _fetch(self, placement: Placement) -> None:
        text = await self.client.http.get(f"/v1/content/{placement.content_digest}")
        assert text.status_code == 200, text.text
        self.fetched.append(text.json()["systemInstructions"])
        if placement.salted:
            salt = await self.client.http.get(f"/v1/salts/{placement.id}")
            assert salt.status_code == 200, salt.text
            self.salts.append(salt.json()["salt"])

    @property
    def pinned(self) -> int:
        """How many texts it holds pinned."""
        return sum(each.pinned is Pinning.HARD for each in self.held.values())

    def _question(self) -> SyncRequest:
        engine = EngineState(
            healthy=True,
            address="203.0.113.9",
            port=8000,
            epoch="1",
            models=(MODEL,),
            block_size=32,
            blocks_total=2 * self.budget_blocks,
            budget_blocks=self.budget_blocks,
        )
        held = tuple(self.held.values())
        state = SidecarState(engine=engine, placements=held, failed_open=self.failed_open)
        return SyncRequest(revision=self.applied, state=state)


def _obeyed(placement: Placement) -> PlacementState:
    """Return the state of a placement when what it asks for is done."""
    if placement.release is not None:
        return PlacementState(
            id=placement.id, phase=Phase.RELEASED, tokens=320, released=placement.release
        )
    return PlacementState(
        id=placement.id,
        phase=Phase.WARM,
        token_digest=placement.content_digest,
        tokens=320,
        pinned_tokens=320,
        pinned=Pinning.HARD,
    )


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


def manifest(name: str, text: str = TEXT, namespace: str = "ml", **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "promptprefix.dev/v1alpha1",
            "kind": "PromptPrefix",
            "metadata": {"name": name, "namespace": namespace},
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


def conditions(server: Cluster, name: str, namespace: str = "ml") -> dict[str, dict[str, Any]]:
    status = get(server, "promptprefix", name, namespace).get("status", {})
    return {each["type"]: each for each in status.get("conditions", [])}


def ready(server: Cluster, name: str, namespace: str = "ml") -> tuple[str, str, int]:
    found = conditions(server, name, namespace).get("Ready", {})
    return found.get("status", ""), found.get("reason", ""), found.get("observedGeneration", 0)


def events(server: Cluster, name: str, namespace: str = "ml") -> list[dict[str, Any]]:
    """Return the operator's Events about an object."""
    selector = f"--field-selector=involvedObject.name={name}"
    found = json.loads(server.kubectl("get", "events", "-n", namespace, selector, "-o", "json"))
    ours = "promptprefix-operator"
    return [each for each in found["items"] if each.get("reportingComponent") == ours]
