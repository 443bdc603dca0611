"""promptprefix and two vLLM pods on a cluster: renders ``manifests/`` and applies them."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSTEM = "promptprefix-system"
WORKLOAD = "ml"
FOLDERS = {
    SYSTEM: ("dependencies", "packages"),
    WORKLOAD: ("dependencies", "packages", "vllm", "model"),
}
"""Which folders the pods of a namespace mount."""
MANIFESTS = Path(__file__).parent / "manifests"
CRD = Path(__file__).resolve().parents[1] / "crds" / "promptprefixes.promptprefix.dev.yaml"

Kubectl = Callable[..., str]
"""``kubectl(*arguments, input=None, timeout=…)`` returns stdout and raises with stderr."""


@dataclass(frozen=True)
class Sources:
    """What pods are made of: an image on the node, and folders of the node."""

    image: str
    dependencies: Path
    packages: Path
    vllm: Path
    model: Path


@dataclass(frozen=True)
class EngineCommand:
    """The engine container's command line and environment."""

    command: tuple[str, ...]
    env: Mapping[str, str]


def deploy(kubectl: Kubectl, sources: Sources, engine: EngineCommand) -> None:
    """Apply the CRD, both namespaces, the operator, the router and the vLLM pods."""
    apply(kubectl, CRD.read_text())
    kubectl("wait", "--for=condition=Established", "crd/promptprefixes.promptprefix.dev")
    apply(kubectl, _manifest("namespaces"))
    folders = _folders(sources)
    for namespace, names in FOLDERS.items():
        for name in names:
            claim, path = _claim(folders[name]), folders[name]
            apply(kubectl, _manifest("environment", namespace=namespace, name=claim, path=path))
    apply(kubectl, _manifest("service"))
    service = kubectl("get", "service", "promptprefix-operator", "-n", SYSTEM, "-o", "json")
    values = {
        **{name: _claim(path) for name, path in folders.items()},
        "image": sources.image,
        "operator_ip": json.loads(service)["spec"]["clusterIP"],
        "vllm_command": json.dumps(engine.command),
        "vllm_env": json.dumps([{"name": k, "value": v} for k, v in engine.env.items()]),
    }
    for name in ("operator", "vllm", "router"):
        apply(kubectl, _manifest(name, **values))


def apply(kubectl: Kubectl, manifest: str) -> None:
    """Apply ``manifest`` server-side."""
    kubectl("apply", "--server-side", "-f", "-", input=manifest)


def pods(kubectl: Kubectl, namespace: str, app: str) -> list[dict[str, Any]]:
    """Return the pods with the label ``app`` that are not being deleted, sorted by name."""
    listed = kubectl("get", "pods", "-n", namespace, "-l", f"app={app}", "-o", "json")
    alive = [p for p in json.loads(listed)["items"] if "deletionTimestamp" not in p["metadata"]]
    return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def describe(pod: Mapping[str, Any]) -> str:
    """Return the pod's containers and their states in one line, for progress."""
    status = pod.get("status", {})
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return " ".join(f"{s['name']}={_state(s)}" for s in states) or str(
        status.get("phase", "Pending")
    )


def _state(status: Mapping[str, Any]) -> str:
    if status.get("ready"):
        return "ready"
    state: dict[str, dict[str, Any]] = status.get("state", {})
    kind, detail = next(iter(state.items()), ("waiting", {}))
    return str(detail.get("reason") or kind)


def _manifest(template: str, /, **values: object) -> str:
    text = (MANIFESTS / f"{template}.yaml").read_text()
    return string.Template(text).substitute({k: str(v) for k, v in values.items()})


def _folders(sources: Sources) -> dict[str, Path]:
    return {
        "dependencies": sources.dependencies,
        "packages": sources.packages,
        "vllm": sources.vllm,
        "model": sources.model,
    }


def _claim(path: Path) -> str:
    """Return the name of the claim of a folder: volumes can't be changed, only replaced."""
    return f"folder-{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
