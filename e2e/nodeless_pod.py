"""A pod that no node runs, as the API server sees one that runs."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.charts.render import Object


def pod_manifest(namespace: str, name: str, labels: Mapping[str, str]) -> Object:
    """Return a pod that the restricted standard admits."""
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
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


def running_status(address: str) -> Object:
    """Return a patch with the status that a node would write of a Ready pod."""
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"status": status}
