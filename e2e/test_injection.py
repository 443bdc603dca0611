"""The webhook before a real API server, which takes pods of every shape under much that forbids."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from e2e.cluster import Cluster, ClusterError
from promptprefix.annotations import INJECT, INJECTED, INJECTION_MESSAGE
from promptprefix_operator.certificates import new_authority, new_serving
from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_operator.injection.webhook import InjectionMetrics, injection_application
from promptprefix_operator.serving import listen

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

Json = dict[str, Any]

OPTIONS = InjectionOptions(
    sidecar_image="registry.example/promptprefix-sidecar:1",
    plugin_image="registry.example/promptprefix-plugin:1",
    control_url="https://promptprefix-operator.promptprefix-system.svc:8443",
    namespaces=frozenset({"ml", "quota"}),
)
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
EQUAL = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}}
LIMITED = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "1", "memory": "8Gi"}}
SERVE = ["vllm", "serve", "m"]
NAMES = ["promptprefix-plugin", "promptprefix-key", "promptprefix-sidecar"]


def engine(**fields: Any) -> Json:
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "securityContext": RESTRICTED} | (
        fields
    )


def pod(name: str, *containers: Json, labels: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {INJECT: "true"} if labels is None else labels},
        "spec": {"containers": list(containers), **spec},
    }


PROXY = {
    **engine(name="routing-proxy", image="proxy", ports=[{"containerPort": 8000}]),
    "restartPolicy": "Always",
}
SHAPES: dict[str, tuple[Json, str]] = {
    "command": (pod("command", engine(command=[*SERVE, "--port", "8000"])), "hard"),
    "arguments": (pod("arguments", engine(args=["--model", "m", "--port=8080"])), "hard"),
    "both": (
        pod("both", engine(command=SERVE[:2], args=["m"]), initContainers=[PROXY]),
        "hard",
    ),
    "variables": (
        pod(
            "variables",
            engine(
                command=SERVE,
                env=[
                    {
                        "name": "PYTHONPATH",
                        "valueFrom": {"configMapKeyRef": {"name": "paths", "key": "python"}},
                    },
                    {
                        "name": "VLLM_API_KEY",
                        "valueFrom": {"secretKeyRef": {"name": "keys", "key": "vllm"}},
                    },
                    {"name": "TZ", "value": "Europe/Berlin"},
                ],
                envFrom=[{"secretRef": {"name": "hub"}}],
                volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
            ),
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        ),
        "hard",
    ),
    "forwarding": (
        pod("forwarding", engine(command=["bash", "-c", 'exec vllm serve m "$@"', "--"])),
        "hard",
    ),
    "script": (pod("script", engine(command=["sh", "-c", "vllm serve m"])), "soft"),
    "scheduler": (pod("scheduler", engine(command=[*SERVE, "--scheduler-cls", "a.B"])), "soft"),
    "socket": (pod("socket", engine(command=[*SERVE, "--uds", "/s"])), "none"),
    "guaranteed": (pod("guaranteed", engine(command=SERVE, resources=EQUAL)), "hard"),
    "whole": (
        pod("whole", engine(command=SERVE), resources={"requests": {"cpu": "1", "memory": "2Gi"}}),
        "hard",
    ),
}


@dataclass(frozen=True)
class Webhook:
    """The webhook as the API server finds it."""

    registry: CollectorRegistry
    stop: AsyncExitStack


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane; no node is needed to admit a pod."""
    with Cluster.start(progress=print, node=False) as started:
        for name in ("ml", "quota"):
            started.kubectl("create", "namespace", name)
            labels = [
                f"pod-security.kubernetes.io/{each}=restricted" for each in ("enforce", "warn")
            ]
            started.kubectl("label", "namespace", name, *labels)
        yield started


@pytest.fixture
async def webhook(server: Cluster, tmp_path: Path) -> AsyncIterator[Webhook]:
    """Serve it, register it twice, as a webhook may be called again, and wait until it is asked."""
    address = server.slot.network.host_address
    now = datetime.now(UTC)
    authority = new_authority(now)
    serving = new_serving(authority, [address], now)
    chain = tmp_path / "tls.pem"
    chain.write_bytes(serving.certificate + serving.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    registry = CollectorRegistry()
    application = injection_application(OPTIONS, InjectionMetrics(registry))
    async with AsyncExitStack() as stack:
        port = await listen(stack, application, address, 0, context)
        bundle = base64.b64encode(authority.certificate).decode()
        await create(server, configuration(f"https://{address}:{port}/v1/inject", bundle), "apply")
        await asked(server)
        yield Webhook(registry, stack)
    await asyncio.to_thread(
        server.kubectl, "delete", "mutatingwebhookconfiguration", "promptprefix-injector"
    )


def configuration(url: str, bundle: str) -> Json:
    hook = {
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "objectSelector": {"matchLabels": {INJECT: "true"}},
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": 5,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "promptprefix-injector"},
        "webhooks": [{**hook, "name": f"{name}.promptprefix.dev"} for name in ("inject", "again")],
    }


async def create(
    server: Cluster, body: Json, verb: str = "create", *arguments: str, namespace: str = "ml"
) -> Json:
    """Create an object and return it as stored; the webhook answers meanwhile."""
    text = await asyncio.to_thread(
        server.kubectl, verb, "-n", namespace, "-o", "json", *arguments, "-f", "-",
        input=json.dumps(body),
    )  # fmt: skip
    return dict(json.loads(text))


async def asked(server: Cluster) -> None:
    """Wait until the API server asks the webhook, which takes it a moment to learn of."""
    probe = pod("probe", engine(command=SERVE))
    async with asyncio.timeout(30):
        while True:
            stored = await create(server, probe, "create", "--dry-run=server")
            if INJECTED in stored["metadata"].get("annotations", {}):
                return
            await asyncio.sleep(0.2)


def ours(stored: Json) -> list[str]:
    names = (each["name"] for each in stored["spec"].get("initContainers", ()))
    return [name for name in names if name.startswith("promptprefix-")]


async def test_pods_of_every_shape_are_taken(server: Cluster, webhook: Webhook) -> None:
    for name, (body, result) in SHAPES.items():
        stored = await create(server, body)
        written = stored["metadata"]["annotations"]
        assert written[INJECTED] == result, (name, written.get(INJECTION_MESSAGE))
        wanted = {"hard": NAMES, "soft": NAMES[1:], "none": []}[result]
        assert ours(stored) == wanted, name
        if name == "guaranteed":
            assert stored["status"]["qosClass"] == "Guaranteed"
    total = webhook.registry.get_sample_value(
        "promptprefix_operator_injections_total", {"result": "hard"}
    )
    assert total is not None
    assert total >= sum(result == "hard" for _, result in SHAPES.values())


async def test_a_quota_of_limits_is_met(server: Cluster, webhook: Webhook) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "all"},
        "spec": {
            "hard": {
                "requests.cpu": "99",
                "requests.memory": "99Gi",
                "limits.cpu": "99",
                "limits.memory": "99Gi",
            }
        },
    }
    await create(server, quota, namespace="quota")
    for name, resources in (("limited", LIMITED), ("equal", EQUAL)):
        body = pod(name, engine(command=SERVE, resources=resources))
        async with asyncio.timeout(30):
            stored = await once_counted(server, body)
        assert ours(stored) == NAMES


async def once_counted(server: Cluster, body: Json) -> Json:
    """Create a pod as soon as the quota's state is known."""
    while True:
        try:
            return await create(server, body, namespace="quota")
        except ClusterError as error:
            if "status unknown for quota" not in str(error):
                raise
            await asyncio.sleep(0.2)


async def test_pods_of_a_deployment_are_injected(server: Cluster, webhook: Webhook) -> None:
    template = pod("x", engine(command=SERVE), labels={INJECT: "true", "app": "vllm"})
    template["metadata"].pop("name")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "vllm"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
    await create(server, deployment)
    async with asyncio.timeout(60):
        while True:
            text = await asyncio.to_thread(
                server.kubectl, "get", "pods", "-n", "ml", "-l", "app=vllm", "-o", "json"
            )
            found = json.loads(text)["items"]
            if len(found) == 2:
                break
            await asyncio.sleep(0.2)
    assert [ours(each) for each in found] == [NAMES, NAMES]


async def test_pods_that_decline_or_do_not_ask_stay_as_they_are(
    server: Cluster, webhook: Webhook
) -> None:
    declining = pod("declining", engine(command=SERVE))
    declining["metadata"]["annotations"] = {INJECT: "false"}
    for body in (declining, pod("silent", engine(command=SERVE), labels={"app": "x"})):
        stored = await create(server, body)
        assert ours(stored) == []
        assert INJECTED not in stored["metadata"].get("annotations", {})


async def test_pods_start_where_the_webhook_is_gone(server: Cluster, webhook: Webhook) -> None:
    await webhook.stop.aclose()
    stored = await create(server, pod("alone", engine(command=SERVE)))
    assert ours(stored) == []
    assert INJECTED not in stored["metadata"].get("annotations", {})
