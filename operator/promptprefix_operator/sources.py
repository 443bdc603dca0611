"""ConfigMaps and Secrets that hold declared texts, and what a reading of one gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from promptprefix.payload import Payload, PayloadError
from promptprefix.reasons import Reason
from promptprefix.resource import Content
from promptprefix_operator.manifests import explain, version_of


class SourceKind(StrEnum):
    """Kinds of objects that hold texts."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind


@dataclass(frozen=True, order=True)
class Source:
    """One object by its name."""

    kind: SourceKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} in namespace {self.namespace}"

    @property
    def field(self) -> str:
        """The field of a resource that names it."""
        reference = "secretRef" if self.kind is SourceKind.SECRET else "configMapRef"
        return f"spec.content.{reference}.name"


@dataclass(frozen=True)
class SourceText:
    """What a source declares: its payload, or why it has none (``reason`` and ``error``)."""

    version: int | None
    payload: Payload | None
    reason: Reason | None = None
    error: str = ""


def source_of(namespace: str, content: Content) -> Source | None:
    """Return where the text stands; None if it stands in the resource itself."""
    if content.configMapRef is not None:
        return Source(SourceKind.CONFIG_MAP, namespace, content.configMapRef.name)
    if content.secretRef is not None:
        return Source(SourceKind.SECRET, namespace, content.secretRef.name)
    return None


def text_in(source: Source, body: Mapping[str, Any]) -> SourceText:
    """Read the content fields of an object; other keys are none of ours."""
    version, data = version_of(body), body.get("data") or {}
    texts = {str(key): str(value) for key, value in data.items()}
    read = Payload.from_secret if source.kind is SourceKind.SECRET else Payload.from_data
    try:
        return SourceText(version, read(texts))
    except PayloadError as error:
        return SourceText(version, None, Reason.INVALID_CONTENT, f"{error}.")
    except ValidationError as error:
        return SourceText(version, None, Reason.INVALID_CONTENT, f"{explain(error, 'data')}.")


def absent(source: Source) -> SourceText:
    """Return the reading of a source that does not exist."""
    error = f"does not exist: create it, or correct {source.field}."
    return SourceText(None, None, Reason.CONTENT_NOT_FOUND, error)


def forbidden(source: Source) -> SourceText:
    """Return the reading of a source that the operator may not get."""
    error = (
        f"the operator may not get it: add {source.name} to the chart's value "
        f"contentSecrets.{source.namespace}, or correct {source.field}."
    )
    return SourceText(None, None, Reason.CONTENT_FORBIDDEN, error)
