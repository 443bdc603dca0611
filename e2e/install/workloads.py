"""What a team brings: a vLLM Deployment of its own, labelled for injection, and prompts."""

from __future__ import annotations

from typing import Any

from e2e.install.folders import Folders
from e2e.install.values import LABELS, MODEL, TEAM, engine_env, plain_arguments

PLAIN = "plain-vllm"
ENGINE_KEY = "team-key"
"""Key that the plain engine's API asks for, and the name of its Secret."""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
NON_ROOT = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def namespace(name: str) -> dict[str, Any]:
    """Return a namespace that takes restricted pods only."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def engine_key() -> dict[str, Any]:
    """Return the Secret with the key of the plain engine's API."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": ENGINE_KEY, "namespace": TEAM},
        "stringData": {"key": ENGINE_KEY},
    }


def _key_variable() -> dict[str, Any]:
    reference = {"name": ENGINE_KEY, "key": "key"}
    return {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": reference}}


def plain_vllm(image: str, folders: Folders) -> dict[str, Any]:
    """Return a Deployment without anything of ours but the label; its API asks for a key."""
    command = plain_arguments(folders)
    container = {
        "name": "vllm",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command[:3],
        "args": command[3:],
        "env": [*engine_env(folders), _key_variable()],
        "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "300m", "memory": "2Gi"}, "limits": {"memory": "7Gi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [
            *folders.mounts(),
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        *folders.volumes(),
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    return _deployment(PLAIN, container, volumes)


def idle(name: str, image: str) -> dict[str, Any]:
    """Return a labelled Deployment that only looks like vLLM: it costs nothing."""
    container = {
        "name": "vllm",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", "import time; time.sleep(3600)", "vllm", "serve"],
        "securityContext": RESTRICTED,
    }
    return _deployment(name, container, [])


def _deployment(
    name: str, container: dict[str, Any], volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    pod_labels = {"app": name, "promptprefix.dev/inject": "true"}
    if name == PLAIN:
        pod_labels |= LABELS
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 2,
                    "securityContext": NON_ROOT,
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def text(topic: str) -> str:
    """Return a system text of some 650 tokens; two topics share no beginning.

    Two such texts fit into the pin budget of the tests' engines.
    """
    rules = (f"Rule {number} of {topic}: be exact." for number in range(50))
    return f"You answer questions about {topic}. " + " ".join(rules)


def prompt_prefix(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a PromptPrefix on all pods of the team."""
    return {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "model": MODEL,
            "pods": {"selector": {"matchLabels": LABELS}},
            "content": content,
        },
    }
