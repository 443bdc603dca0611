"""Untyped objects of the API server turned into what the operator works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from promptprefix.fleet import Pod
from promptprefix.payload import Payload, PayloadError
from promptprefix.resource import PromptPrefixSpec, PromptPrefixStatus

FINALIZER = "promptprefix.dev/finalizer"
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Resource:
    """A PromptPrefix as last seen.

    ``spec_error`` says why the spec can't be read; ``guarded``: it has our finalizer.
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
    guarded: bool


@dataclass(frozen=True)
class ConfigMap:
    """The content of a ConfigMap: its payload, or why it has none."""

    version: int | None
    payload: Payload | None
    error: str = ""


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
        guarded=FINALIZER in (metadata.get("finalizers") or ()),
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
    )


def config_map_of(body: Mapping[str, Any]) -> ConfigMap:
    """Read the content fields of a ConfigMap; other keys are none of ours."""
    version, data = version_of(body), body.get("data") or {}
    try:
        return ConfigMap(version, Payload.from_data({key: str(data[key]) for key in data}))
    except PayloadError as error:
        return ConfigMap(version, None, str(error))
    except ValidationError as error:
        return ConfigMap(version, None, explain(error, "data"))
