"""What is read of objects: conditions, and the pods of a selector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from e2e.install.programs import Kubectl


def condition(resource: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition ``kind`` if it speaks of the resource's newest generation, else {}."""
    generation = resource["metadata"]["generation"]
    for entry in resource.get("status", {}).get("conditions", []):
        if entry["type"] == kind and entry.get("observedGeneration") == generation:
            return dict(entry)
    return {}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def pods(kubectl: Kubectl, namespace: str, selector: str) -> list[dict[str, Any]]:
    """Return the pods that are not being deleted, oldest first, then by name."""
    listed = kubectl.read("pods", "-n", namespace, "-l", selector)["items"]
    alive = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
    return sorted(alive, key=_age_and_name)


def _age_and_name(pod: Mapping[str, Any]) -> tuple[str, str]:
    metadata = pod["metadata"]
    return str(metadata["creationTimestamp"]), str(metadata["name"])
