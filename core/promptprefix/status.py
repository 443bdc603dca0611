"""The status of a ``PromptPrefix`` as models; ``crd`` turns them into the schema.

Field names are the resource's own (camelCase).
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_VERSIONS = 3
MAX_PROBLEMS = 10
MAX_LINT = 20


class Condition(BaseModel):
    """A condition, as metav1.Condition defines it."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(max_length=316, description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    observedGeneration: int = Field(  # noqa: N815
        default=0, ge=0, description="Generation of the spec that the condition was set for."
    )
    lastTransitionTime: datetime = Field(  # noqa: N815
        description="When the status last changed."
    )
    reason: str = Field(
        min_length=1, max_length=1024, description="Machine-readable word for the last change."
    )
    message: str = Field(max_length=32_768, description="What happened and what to do, for people.")


class Problem(BaseModel):
    """What keeps one pod from holding the prefix."""

    model_config = ConfigDict(frozen=True)

    pod: str = Field(max_length=253, description="Name of the pod.")
    reason: str = Field(max_length=63, description="Machine-readable word.")
    message: str = Field(max_length=1024, description="What happened and what to do.")


class VersionStatus(BaseModel):
    """One text of the resource that pods hold or should hold."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(max_length=32, description="Short id of the version.")
    fingerprint: str = Field(max_length=128, description="Identity of its text.")
    contentDigest: str = Field(  # noqa: N815
        default="", max_length=64, description="SHA-256 of its text, byte for byte."
    )
    warmPods: int = Field(  # noqa: N815
        default=0, ge=0, description="Pods that hold it warm."
    )
    since: datetime = Field(description="When it was first declared.")
    superseded: datetime | None = Field(
        default=None, description="When another version took its place."
    )
    lastMatched: datetime | None = Field(  # noqa: N815
        default=None, description="When a request last matched it, within some minutes."
    )


class LintFinding(BaseModel):
    """One finding of the linter."""

    model_config = ConfigDict(frozen=True)

    rule: str = Field(max_length=63, description="Id of the rule.")
    severity: Literal["Warning", "Error"] = Field(description="How much it matters.")
    path: str = Field(max_length=253, description="Content field in which it stands.")
    offset: int = Field(ge=0, description="Place in the field, in characters from its start.")
    tokensLost: int = Field(  # noqa: N815
        default=0,
        ge=0,
        description="Tokens from this place to the end of the prefix; none of them can be reused "
        "while the finding stands. 0 where the rule is not about a place.",
    )
    message: str = Field(max_length=1024, description="What it costs and how to fix it.")


class PromptPrefixStatus(BaseModel):
    """Observed state. Its size does not grow with the number of pods."""

    model_config = ConfigDict(frozen=True)

    observedGeneration: int = Field(  # noqa: N815
        default=0, ge=0, description="Generation of the spec that this status describes."
    )
    fingerprint: str = Field(
        default="", max_length=128, description="Identity of the declared text (pp1:sha256:…)."
    )
    tokens: int = Field(
        default=0, ge=0, description="Tokens of the reusable head, in whole KV blocks."
    )
    blocks: int = Field(default=0, ge=0, description="KV blocks of the reusable head.")
    desiredPods: int = Field(  # noqa: N815
        default=0, ge=0, description="Pods that should hold the prefix."
    )
    warmPods: int = Field(  # noqa: N815
        default=0, ge=0, description="Pods that hold the current text, checked by the engine."
    )
    pinnedPods: int = Field(  # noqa: N815
        default=0, ge=0, description="Warm pods on which the prefix can't be evicted."
    )
    warm: str = Field(
        default="", max_length=32, description="Warm pods of desired pods, for the list view."
    )
    versions: list[VersionStatus] = Field(
        default=[],
        max_length=MAX_VERSIONS,
        description="The declared version and earlier ones that are still held, newest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    activeWindow: str = Field(  # noqa: N815
        default="", max_length=63, description="Name of the peak window that is open."
    )
    nextTransitionTime: datetime | None = Field(  # noqa: N815
        default=None,
        description="When peak windows or annotations begin or cease to hold the prefix next.",
    )
    problems: list[Problem] = Field(
        default=[],
        max_length=MAX_PROBLEMS,
        description="What keeps pods from holding the prefix; at most 10, the counts say the rest.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    lint: list[LintFinding] = Field(
        default=[],
        max_length=MAX_LINT,
        description="Findings of the linter, at most 20.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    conditions: list[Condition] = Field(
        default=[],
        max_length=16,
        description="Ready, Active, Warm, Reconciling and Stalled.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
