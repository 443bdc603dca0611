"""PromptPrefixes as the API server holds them, with the status that the planner writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from promptprefix.crd import UNOBSERVED
from promptprefix.fleet import Pod, Prefix, Refusal, Sidecar, Snapshot, Version
from promptprefix.placement import plan
from promptprefix.resource import API_VERSION, KIND, Pinning, PromptPrefixSpec, PromptPrefixStatus
from promptprefix.wire import EngineState, Phase, PlacementState, SidecarState

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MODEL = "demo"
VERSION = Version("u-1", MODEL, "pp1:sha256:f", "digest")
OLD = Version("u-0", MODEL, "pp1:sha256:e", "old digest")

SPEC: dict[str, Any] = {
    "model": MODEL,
    "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
    "content": {"configMapRef": {"name": "a"}},
}

Held = Mapping[str, PlacementState]
"""What each pod reports, by the pod's name."""


def spec(**fields: Any) -> PromptPrefixSpec:
    return PromptPrefixSpec.model_validate(SPEC | fields)


def prefix(refusal: Refusal | None = None, **fields: Any) -> Prefix:
    made = Prefix("u", "ml", "a", 2, spec=spec(), version=VERSION, refusal=refusal)
    return replace(made, **fields)


def held(
    version: Version = VERSION,
    phase: Phase = Phase.WARM,
    pinned: Pinning = Pinning.HARD,
    **told: str,
) -> PlacementState:
    return PlacementState(id=version.id, phase=phase, pinned=pinned, tokens=320, **told)


def snapshot(declared: Prefix, *reports: PlacementState | None) -> Snapshot:
    """Return a fleet with one pod for each report; None is a pod that holds nothing."""
    engine = EngineState(
        healthy=True, address="10.0.0.1", port=8000, models=(MODEL,), block_size=16
    )
    names = [f"vllm-{number}" for number in range(len(reports))]
    return Snapshot(
        prefixes=(declared,),
        pods=tuple(Pod(n, "ml", n, {"app": "vllm"}, "10.0.0.1", True, False) for n in names),
        sidecars={
            name: Sidecar(SidecarState(engine=engine, placements=(report,) if report else ()))
            for name, report in zip(names, reports, strict=True)
        },
    )


def stored(declared: Prefix, status: PromptPrefixStatus | None) -> dict[str, Any]:
    """Return the object; without a status of ours it has the one that the CRD gives it."""
    told = UNOBSERVED if status is None else status.model_dump(mode="json")
    metadata: dict[str, Any] = {
        "name": declared.name, "namespace": declared.namespace, "generation": declared.generation,
    }  # fmt: skip
    if declared.deleting:
        metadata |= {"deletionTimestamp": "2026-11-29T12:00:00Z", "finalizers": ["example.com/x"]}
    content = declared.spec.model_dump(mode="json", exclude_none=True) if declared.spec else {}
    return {
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": content,
        "status": told,
    }  # fmt: skip


def planned(declared: Prefix, *reports: PlacementState | None) -> dict[str, Any]:
    """Return the object with the status that a plan over this fleet gives it, if it gives one."""
    found = plan(snapshot(declared, *reports), NOW).statuses.get(declared.uid)
    return stored(declared, found)
