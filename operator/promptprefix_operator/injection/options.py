"""What the operator's installation decides about injection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from promptprefix_operator.injection.pod import JsonObject

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def default_resources() -> JsonObject:
    """Return the resources of our containers where none are set."""
    return {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


@dataclass(frozen=True)
class InjectionOptions:
    """namespaces: those whose pods are injected.

    control_url: the operator's control API as injected sidecars dial it.
    resources: of each of our containers, as in a manifest.
    run_as_user: their user and group; None leaves them to the cluster (restricted-v2 of OpenShift).
    ready_timeout_s: a pod is Ready after this long, warm or not.
    warm_chunk_tokens: what one request of a warm-up computes at most.
    """

    sidecar_image: str
    plugin_image: str
    control_url: str
    namespaces: frozenset[str]
    pull_policy: PullPolicy = "IfNotPresent"
    resources: dict[str, Any] = field(default_factory=default_resources)
    run_as_user: int | None = 65532
    ready_timeout_s: float = 600.0
    warm_chunk_tokens: int = 1_024
