"""AdmissionReview v1: what the API server asks, and what it is answered."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from promptprefix_operator.injection.injector import Injection

_WARNING_CHARS = 256
"""API servers may cut longer warnings."""


class _Asked(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


class Kind(_Asked):
    """A group, version and kind."""

    group: str = ""
    version: str
    kind: str


def _or_empty(value: object) -> object:
    return "" if value is None else value


class Request(_Asked):
    """One question."""

    uid: str = Field(min_length=1, max_length=256)
    kind: Kind
    sub_resource: Annotated[str, BeforeValidator(_or_empty)] = ""
    operation: str
    namespace: Annotated[str, BeforeValidator(_or_empty)] = ""
    object: Annotated[dict[str, Any] | None, Field(repr=False)] = None

    @property
    def creates_pod(self) -> bool:
        """Whether a pod is created."""
        kind = (self.kind.group, self.kind.version, self.kind.kind)
        return (
            kind == ("", "v1", "Pod") and self.operation == "CREATE" and not self.sub_resource
        ) and self.object is not None


class Review(_Asked):
    """The body of a question; a `pydantic.ValidationError` quotes no part of it if asked so."""

    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: Request


def answer(request: Request, injection: Injection | None) -> dict[str, Any]:
    """Return the body of the answer, which always allows."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if injection is not None and injection.operations:
        patch = json.dumps(injection.operations, separators=(",", ":"))
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(patch.encode()).decode()
    if injection is not None and injection.sentences:
        response["warnings"] = [
            f"promptprefix: {sentence}"[:_WARNING_CHARS] for sentence in injection.sentences
        ]
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }
