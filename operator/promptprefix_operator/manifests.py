"""Untyped objects of the API server turned into what the operator works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from promptprefix.annotations import INJECT, INJECTED
from promptprefix.fleet import Pod
from promptprefix.resource import PromptPrefixSpec, PromptPrefixStatus

SIDECAR = "promptprefix-sidecar"
"""Name of our container in a pod."""
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Resource:
    """A PromptPrefix as last seen; ``spec_error`` says why the spec can't be read."""

    uid: str
    namespace: str
    name: str
    generation: int
    version: int | None
    spec: PromptPrefixSpec | None
    spec_error: str
    status: PromptPrefixStatus | None
    deleting: bool


def resource_of(body: Mapping[str, Any]) -> Resource:
    """Read a PromptPrefix."""
    metadata = body["metadata"]
    spec, spec_error = _spec_of(body.get("spec"))
    return Resource(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        generation=int(metadata.get("generation") or 0),
        version=version_of(body),
        spec=spec,
        spec_error=spec_error,
        status=_status_of(body.get("status")),
        deleting="deletionTimestamp" in metadata,
    )


def uid_of(body: Mapping[str, Any]) -> str:
    """Return the uid of an object."""
    return str(body["metadata"]["uid"])


def version_of(body: Mapping[str, Any]) -> int | None:
    """Return the resourceVersion as a number, by which the age of two readings is compared."""
    text = str(body["metadata"].get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdigit() else None


def _spec_of(spec: object) -> tuple[PromptPrefixSpec | None, str]:
    try:
        return PromptPrefixSpec.model_validate(spec), ""
    except ValidationError as error:
        return None, explain(error, "spec")


def _status_of(status: object) -> PromptPrefixStatus | None:
    if not status:
        return None
    try:
        return PromptPrefixStatus.model_validate(status)
    except ValidationError:
        return None  # somebody else's writing: it is written anew


def explain(error: ValidationError, root: str) -> str:
    """Return what is wrong with which field; never the value, which may be a prompt."""
    parts = [
        f"{'.'.join([root, *map(str, each['loc'])])}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    ]
    return "; ".join(parts)


def pod_of(body: Mapping[str, Any]) -> Pod:
    """Read a pod."""
    metadata = body["metadata"]
    status = body.get("status") or {}
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    leaving = "deletionTimestamp" in metadata or status.get("phase") in _FINISHED
    return Pod(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        labels=dict(metadata.get("labels") or {}),
        address=str(status.get("podIP") or ""),
        ready=ready,
        leaving=leaving,
        uninjected=_uninjected(body),
    )


def _uninjected(body: Mapping[str, Any]) -> bool:
    """Whether a pod asks for injection, and no webhook has looked at it."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    if (metadata.get("labels") or {}).get(INJECT) != "true" or annotations.get(INJECT) == "false":
        return False
    containers = (body.get("spec") or {}).get("initContainers") or ()
    return INJECTED not in annotations and all(each.get("name") != SIDECAR for each in containers)
