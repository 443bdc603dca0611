"""Objects that resources refer to, and what a reading of one gave.

ConfigMaps and Secrets hold texts and cache salts, an InferencePool selects pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from promptprefix.payload import Payload, PayloadError
from promptprefix.reasons import Reason
from promptprefix.resource import PromptPrefixSpec
from promptprefix.selector import LabelSelector
from promptprefix_operator.manifests import explain, version_of
from promptprefix_operator.salts import SaltError, decoded_salt

POOL_GROUP: Final = "inference.networking.k8s.io"
POOL_VERSION: Final = "v1"
POOL_PLURAL: Final = "inferencepools"


class SourceKind(StrEnum):
    """What is read: the text of a ConfigMap or a Secret, one key of a Secret, or a selector."""

    CONFIG_MAP = "ConfigMap"
    POOL = "InferencePool"
    SECRET = "Secret"  # noqa: S105 - a kind
    SALT = "Salt"


FIELDS: Mapping[SourceKind, str] = {
    SourceKind.CONFIG_MAP: "spec.content.configMapRef.name",
    SourceKind.POOL: "spec.pods.inferencePoolRef.name",
    SourceKind.SECRET: "spec.content.secretRef.name",
    SourceKind.SALT: "spec.cacheSaltRef.name",
}
"""The field of a resource that names the object."""


@dataclass(frozen=True, order=True)
class Source:
    """One object by its name; of a salt's Secret also the ``key``."""

    kind: SourceKind
    namespace: str
    name: str
    key: str = ""

    def __str__(self) -> str:
        kind = SourceKind.SECRET if self.secret else self.kind
        return f"{kind} {self.name} in namespace {self.namespace}"

    @property
    def secret(self) -> bool:
        """Whether the object is a Secret."""
        return self.kind in (SourceKind.SECRET, SourceKind.SALT)

    @property
    def field(self) -> str:
        """The field of a resource that names it."""
        return FIELDS[self.kind]


@dataclass(frozen=True)
class SourceText:
    """What a source gave: payload, salt or selector, or why it has none (``reason``, ``error``)."""

    version: int | None
    payload: Payload | None
    reason: Reason | None = None
    error: str = ""
    salt: str = field(default="", repr=False)
    selector: LabelSelector | None = None


def sources_of(namespace: str, spec: PromptPrefixSpec) -> tuple[Source | None, ...]:
    """Return where text, salt and selector stand."""
    found = (text_source_of, salt_source_of, pool_source_of)
    return tuple(find(namespace, spec) for find in found)


def text_source_of(namespace: str, spec: PromptPrefixSpec) -> Source | None:
    """Return where the text stands; None if it stands in the resource itself."""
    content = spec.content
    if content.configMapRef is not None:
        return Source(SourceKind.CONFIG_MAP, namespace, content.configMapRef.name)
    if content.secretRef is not None:
        return Source(SourceKind.SECRET, namespace, content.secretRef.name)
    return None


def salt_source_of(namespace: str, spec: PromptPrefixSpec) -> Source | None:
    """Return where the cache salt stands; None if there is none."""
    reference = spec.cacheSaltRef
    if reference is None:
        return None
    return Source(SourceKind.SALT, namespace, reference.name, reference.key)


def pool_source_of(namespace: str, spec: PromptPrefixSpec) -> Source | None:
    """Return the InferencePool that selects the pods; None if the resource does so itself."""
    reference = spec.pods.inferencePoolRef
    return None if reference is None else Source(SourceKind.POOL, namespace, reference.name)


def read_source(source: Source, body: Mapping[str, Any]) -> SourceText:
    """Read what a source stands for from its object."""
    if source.kind is SourceKind.POOL:
        return selector_in(body)
    return salt_in(source, body) if source.kind is SourceKind.SALT else text_in(source, body)


def selector_in(body: Mapping[str, Any]) -> SourceText:
    """Read the selector of an InferencePool."""
    version, selector = version_of(body), (body.get("spec") or {}).get("selector")
    try:
        return SourceText(version, None, selector=LabelSelector.model_validate(selector))
    except ValidationError as error:
        told = f"{explain(error, 'spec.selector')}."
        return SourceText(version, None, Reason.INVALID_POOL, told)


def salt_in(source: Source, body: Mapping[str, Any]) -> SourceText:
    """Read the salt of a Secret."""
    version, data = version_of(body), body.get("data") or {}
    encoded = data.get(source.key)
    if encoded is None:
        error = f"has no key {source.key}: add it, or correct spec.cacheSaltRef.key."
        return SourceText(version, None, Reason.INVALID_SALT, error)
    try:
        return SourceText(version, None, salt=decoded_salt(str(encoded)))
    except SaltError as refused:
        error = f"data.{source.key} {refused}."
        return SourceText(version, None, Reason.INVALID_SALT, error)


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
    pool = source.kind is SourceKind.POOL
    reason = Reason.POOL_NOT_FOUND if pool else Reason.CONTENT_NOT_FOUND
    return SourceText(None, None, reason, error)


def unreadable(source: Source, cause: str) -> SourceText:
    """Return the reading of a source that the API server has and can't give."""
    error = f"can't be read ({cause}): see the API server's log, or replace {source.name}."
    return SourceText(None, None, Reason.RECONCILING, error)


def unserved_pool() -> SourceText:
    """Return the reading of an InferencePool where the cluster knows no such kind."""
    error = (
        f"the cluster does not serve {POOL_GROUP}/{POOL_VERSION}: install the CRDs of the "
        "Gateway API Inference Extension, or use spec.pods.selector."
    )
    return SourceText(None, None, Reason.POOL_NOT_FOUND, error)


def forbidden_pool() -> SourceText:
    """Return the reading of an InferencePool that the operator may not list."""
    error = (
        "the operator may not list InferencePools: set the chart's value inferencePools to true, "
        "or use spec.pods.selector."
    )
    return SourceText(None, None, Reason.POOL_FORBIDDEN, error)


def forbidden(source: Source) -> SourceText:
    """Return the reading of a source that the operator may not get."""
    error = (
        f"the operator may not get it: add {source.name} to the chart's value "
        f"contentSecrets.{source.namespace}, or correct {source.field}."
    )
    return SourceText(None, None, Reason.CONTENT_FORBIDDEN, error)
