"""Untyped objects of the API server turned into what the operator works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from promptprefix.annotations import INJECT, INJECTED, UNPIN, WARM_NOW, ZONE_LABEL
from promptprefix.fleet import Override, Pod
from promptprefix.resource import PromptPrefixSpec, PromptPrefixStatus
from promptprefix.roles import decodes
from promptprefix_operator.overrides import override_in

SIDECAR = "promptprefix-sidecar"
"""Name of our container in a pod."""
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Resource:
    """A PromptPrefix as last seen; ``spec_error`` says why the spec can't be read.

    ``warm_now`` and ``unpin`` are what its annotations ask for; ``notes`` say which of them could
    not be understood.
    """

    uid: str
    namespace: str
    name: str
    generation: int
    version: int | None
    spec: PromptPrefixSpec | None
    spec_error: str
    status: PromptPrefixStatus | None
    deleting: bool
    created: datetime | None = None
    warm_now: Override | None = None
    unpin: Override | None = None
    notes: tuple[str, ...] = ()


def resource_of(body: Mapping[str, Any]) -> Resource:
    """Read a PromptPrefix."""
    metadata = body["metadata"]
    spec, spec_error = _spec_of(body.get("spec"))
    annotations = metadata.get("annotations") or {}
    warm_now, warm_note = override_in(annotations, WARM_NOW)
    unpin, unpin_note = override_in(annotations, UNPIN)
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
        created=_created(metadata),
        warm_now=warm_now,
        unpin=unpin,
        notes=tuple(note for note in (warm_note, unpin_note) if note),
    )


def uid_of(body: Mapping[str, Any]) -> str:
    """Return the uid of an object."""
    return str(body["metadata"]["uid"])


def version_of(body: Mapping[str, Any]) -> int | None:
    """Return the resourceVersion as a number, by which the age of two readings is compared."""
    return version_in(str(body["metadata"].get("resourceVersion") or ""))


def version_in(text: str) -> int | None:
    """Return a resourceVersion as a number; None for none, and for one that is no number."""
    return int(text) if text.isascii() and text.isdigit() else None


def _created(metadata: Mapping[str, Any]) -> datetime | None:
    text = str(metadata.get("creationTimestamp") or "")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


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
    labels = {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()}
    return Pod(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        labels=labels,
        address=str(status.get("podIP") or ""),
        ready=ready,
        leaving=leaving,
        uninjected=_uninjected(body),
        decodes=decodes(labels),
        node=str((body.get("spec") or {}).get("nodeName") or ""),
        zone=labels.get(ZONE_LABEL, ""),
    )


def _uninjected(body: Mapping[str, Any]) -> bool:
    """Whether a pod asks for injection, and no webhook has looked at it."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    if (metadata.get("labels") or {}).get(INJECT) != "true" or annotations.get(INJECT) == "false":
        return False
    containers = (body.get("spec") or {}).get("initContainers") or ()
    return INJECTED not in annotations and all(each.get("name") != SIDECAR for each in containers)
