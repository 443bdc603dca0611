"""Many real sidecars in one process, each beside its own simulated engine; no node runs the pods.

Every sidecar proves its pod with a real bound ServiceAccount token.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import HttpUrl

from bench.kube_admin import Json, KubeAdmin
from e2e.simulator import SimulatedEngine, SimulatorOptions, Timing, simulator_client
from promptprefix.wire import AUDIENCE
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlClient
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import Sidecar, build_sidecar

TOKEN_SECONDS = 7200
BLOCK_SIZE = 16
BLOCKS = 4096
STARTS_PER_S = 20
"""Pods of a large fleet don't start in the same instant either."""
PREFILL_TOKENS_PER_S = 10_000.0
PROBE_SECONDS = 15.0
REPORT_SECONDS = 30.0
"""Rarer than in pods of their own: all sidecars share one core, and would spend it on looking."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class PodOfFleet:
    """A pod of the API server, and the token that proves it."""

    name: str
    uid: str
    address: str
    token: str


def team(index: int, teams: int) -> str:
    """Return the label of the pods that one team's prefixes select."""
    return f"team-{index % teams}"


async def make_pods(admin: KubeAdmin, namespace: str, count: int, teams: int) -> list[PodOfFleet]:
    """Create running pods with addresses, spread over zones and teams, and their tokens."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = await admin.send_all(
        ("POST", pods, _pod(index, teams), "application/json") for index in range(count)
    )
    names = [(each["metadata"]["name"], each["metadata"]["uid"]) for each in made]
    await admin.send_all(
        ("PATCH", f"{pods}/{name}/status", _running(index), MERGE)
        for index, (name, _) in enumerate(names)
    )
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts/vllm/token"
    tokens = await admin.send_all(
        ("POST", accounts, _token_request(name, uid), "application/json") for name, uid in names
    )
    return [
        PodOfFleet(name, uid, _address(index), token["status"]["token"])
        for index, ((name, uid), token) in enumerate(zip(names, tokens, strict=True))
    ]


def _address(index: int) -> str:
    return f"10.20.{index // 250}.{index % 250 + 1}"


def _pod(index: int, teams: int) -> Json:
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    labels = {
        "app": "fleet",
        "team": team(index, teams),
        "topology.kubernetes.io/zone": f"zone-{index % 3}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"fleet-{index}", "labels": labels},
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


def _running(index: int) -> Json:
    address = _address(index)
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"status": status}


def _token_request(name: str, uid: str) -> Json:
    reference = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": [AUDIENCE],
            "boundObjectRef": reference,
            "expirationSeconds": TOKEN_SECONDS,
        },
    }


@dataclass(frozen=True)
class Fleet:
    """What runs; the engines can be crashed and looked at."""

    engines: tuple[SimulatedEngine, ...]
    sidecars: tuple[Sidecar, ...]


@contextlib.asynccontextmanager
async def fleet(
    pods: Sequence[PodOfFleet], control_url: str, authority: str, folder: Path
) -> AsyncIterator[Fleet]:
    """Run a sidecar and an engine for every pod; a part that fails ends the block."""
    key = secrets.token_bytes(32)
    (folder / "key").write_bytes(key)
    (folder / "ca.crt").write_text(authority)
    options = SimulatorOptions(
        blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=32_768,
        max_num_seqs=64,
        max_batched_tokens=8192,
        key=key,
        timing=Timing(prefill_tokens_per_s=PREFILL_TOKENS_PER_S, decode_seconds=0.01),
    )
    engines = tuple(SimulatedEngine(options) for _ in pods)
    async with contextlib.AsyncExitStack() as stack:
        sidecars = []
        for pod, engine in zip(pods, engines, strict=True):
            settings = _settings(pod, control_url, folder)
            client = await stack.enter_async_context(simulator_client(engine))
            sidecars.append(build_sidecar(settings, client, _control(settings), Clock()))
        running = Fleet(engines, tuple(sidecars))
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:

            async def start() -> None:
                for each in sidecars:
                    tasks.append(group.create_task(each.run()))
                    await asyncio.sleep(1 / STARTS_PER_S)

            tasks.append(group.create_task(start()))
            try:
                yield running
            finally:
                for task in tasks:
                    task.cancel()


def _settings(pod: PodOfFleet, control_url: str, folder: Path) -> Settings:
    token_file = folder / f"{pod.name}.token"
    token_file.write_text(pod.token)
    return Settings(
        control_url=HttpUrl(control_url),
        ca_file=folder / "ca.crt",
        token_file=token_file,
        pod_ip=pod.address,
        key_file=folder / "key",
        latch_file=folder / f"{pod.name}.latch",
        probe_interval_s=PROBE_SECONDS,
        report_interval_s=REPORT_SECONDS,
    )


def _control(settings: Settings) -> ControlClient:
    def connect(context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=str(settings.control_url), verify=context, trust_env=False
        )

    return ControlClient(connect, ca_file=settings.ca_file, token_file=settings.token_file)
