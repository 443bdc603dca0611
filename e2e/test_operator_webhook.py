"""The webhook behind a real API server: it is trusted by what the operator writes, and pods change.

No node runs, so the API server dials the machine's address instead of the Service's.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.operator_stand import apply, control_plane, get, installed, operator, until
from promptprefix.annotations import INJECT, INJECTED
from promptprefix_operator.trust import CHECK_SECONDS

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

KIND = "MutatingWebhookConfiguration"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


def make_pod(server: Cluster, name: str) -> dict[str, Any]:
    """Create a pod that asks for injection, and return what the API server made of it."""
    limits = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    engine = {
        "name": "vllm",
        "image": "vllm/vllm-openai",
        "args": ["--model", "demo"],
        "securityContext": limits,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {INJECT: "true"}},
        "spec": {"serviceAccountName": "vllm", "containers": [engine]},
    }
    apply(server, json.dumps(pod))
    return get(server, "pod", name)


def is_injected(pod: dict[str, Any]) -> bool:
    names = {each["name"] for each in pod["spec"].get("initContainers", ())}
    annotations = pod["metadata"].get("annotations") or {}
    return "promptprefix-sidecar" in names and annotations.get(INJECTED) == "hard"


async def test_pods_are_injected_and_a_reset_configuration_heals(
    server: Cluster, tmp_path: Path
) -> None:
    host = server.slot.network.host_address
    with socket.create_server((host, 0)) as found:
        port = found.getsockname()[1]
    [configuration] = installed("ml", [KIND])
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://{host}:{port}{path}"}
    name = configuration["metadata"]["name"]
    apply(server, json.dumps(configuration))
    assert not is_injected(make_pod(server, "before")), "nobody answers, and the pod starts"

    def bundle() -> str:
        webhook = get(server, KIND, name)["webhooks"][0]
        return str(webhook["clientConfig"].get("caBundle", ""))

    settings = {
        "SERVING_NAMES": f"127.0.0.1,{host}",
        "WEBHOOK_CONFIGURATION": name,
        "WEBHOOK_HOST": host,
        "WEBHOOK_PORT": str(port),
        "SIDECAR_IMAGE": "sidecar",
        "PLUGIN_IMAGE": "plugin",
        "CONTROL_URL": "https://promptprefix-operator.promptprefix-system:8443",
    }
    async with operator(server, tmp_path, **settings) as running:
        await until(lambda: bundle() != "")
        written = bundle()
        await injected_soon(server, "first")

        removal = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        server.kubectl("patch", KIND, name, "--type=json", "-p", json.dumps(removal))
        began = time.monotonic()
        await until(lambda: bundle() == written, CHECK_SECONDS + 10)
        print(f"the authority is back after {time.monotonic() - began:.1f} s")
        await injected_soon(server, "second")
        owners = {
            each["manager"]: json.dumps(each["fieldsV1"])
            for each in get(server, KIND, name)["metadata"]["managedFields"]
        }
        ours = [each for each in owners.values() if "caBundle" in each]
        assert len(ours) == 1
        assert "f:rules" not in ours[0], "nothing else is claimed"
        assert running.errors == []


async def injected_soon(server: Cluster, name: str) -> None:
    """The API server takes a moment to see a changed configuration."""
    async with asyncio.timeout(15):
        for attempt in range(100):
            if is_injected(make_pod(server, f"{name}-{attempt}")):
                return
            await asyncio.sleep(0.3)
    raise AssertionError("never injected")
