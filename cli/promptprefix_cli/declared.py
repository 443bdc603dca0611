"""The declared prefixes of an input: PromptPrefix manifests and request bodies."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import ValidationError

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.lint import lint_payload
from promptprefix.payload import CONTENT_FIELDS, Payload, PayloadError
from promptprefix.request import UndeclaredError
from promptprefix.resource import (
    API_VERSION,
    KIND,
    Content,
    LintFinding,
    LintPolicy,
    LintSettings,
    PromptPrefixSpec,
)
from promptprefix.windows import WindowError, read_window
from promptprefix_cli.input_error import InputError, validation_errors
from promptprefix_cli.request_body import places, remedy, shape_of

Sources: TypeAlias = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""ConfigMaps and Secrets of the input by kind, namespace and name."""

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"  # noqa: S105 - a kind

INLINE = {name: f"spec.content.inline.{name}" for name in CONTENT_FIELDS}
DATA = {name: f"data.{name}" for name in CONTENT_FIELDS}


@dataclass(frozen=True)
class Declared:
    """One declared prefix. ``places`` maps content fields to their places in the document.

    ``spec`` and ``metadata`` are those of a manifest; a request body has none.
    """

    document: str
    model: str
    payload: Payload
    places: Mapping[str, str]
    fingerprint: str
    lint: LintSettings = field(default_factory=LintSettings)
    spec: PromptPrefixSpec | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def findings(self) -> list[LintFinding]:
        """Return the linter's findings, under the paths of the document."""
        if self.lint.policy is LintPolicy.OFF:
            return []
        found = lint_payload(self.payload, model=self.model, ignore=self.lint.ignore)
        return [finding.model_copy(update={"path": self.places[finding.path]}) for finding in found]

    def window_errors(self) -> list[tuple[str, str]]:
        """Return the fields of windows that can't be read, and what is wrong with them."""
        errors = []
        for index, window in enumerate(self.spec.windows if self.spec is not None else ()):
            try:
                read_window(window)
            except WindowError as error:
                errors.append((f"spec.windows[{index}].{error.field}", error.problem))
        return errors

    def text_at(self, path: str) -> str:
        """Return the text of the field that stands at ``path`` of the document."""
        name = next(name for name, place in self.places.items() if place == path)
        return str(getattr(self.payload, name))


def declared_prefixes(
    documents: Sequence[tuple[str, Any]],
) -> tuple[list[Declared], list[InputError]]:
    """Return the prefixes that labelled ``documents`` declare, and what is wrong with others."""
    found: list[Declared] = []
    errors: list[InputError] = []
    objects = list(objects_of(documents))
    sources = {
        (item["kind"], _metadata(item, "namespace"), _metadata(item, "name")): item
        for _, item in objects
        if isinstance(item, Mapping)
        and item.get("apiVersion") == "v1"
        and item.get("kind") in (CONFIG_MAP, SECRET)
    }
    for label, item in objects:
        try:
            if declared := _declared(label, item, sources):
                found.append(declared)
        except* InputError as group:
            errors += [error for error in group.exceptions if isinstance(error, InputError)]
    if not found and not errors:
        errors.append(InputError("", "", f"no {KIND} and no request body in the input"))
    return found, errors


def objects_of(documents: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the documents with their labels; the items of a List bear its label."""
    for label, document in documents:
        items = document.get("items") if isinstance(document, Mapping) else None
        if isinstance(items, list) and str(document.get("kind", "")).endswith("List"):
            for item in items:
                yield label, item
        else:
            yield label, document


def _declared(label: str, item: Any, sources: Sources) -> Declared | None:
    if not isinstance(item, Mapping):
        raise InputError(label, "", f"must be a {KIND} manifest or a request body")
    if "kind" not in item:
        if "messages" in item or "model" in item:
            return _request(f"{label} (request body)", item)
        raise InputError(label, "kind", f"is missing; this is no {KIND} and no request body")
    if item["kind"] != KIND:
        return None
    name = "/".join(filter(None, (_metadata(item, "namespace"), _metadata(item, "name"))))
    return _manifest(f"{label} ({KIND} {name})" if name else f"{label} ({KIND})", item, sources)


def _manifest(document: str, item: Mapping[Any, Any], sources: Sources) -> Declared:
    if item.get("apiVersion") != API_VERSION:
        raise InputError(document, "apiVersion", f"must be {API_VERSION}")
    if not _metadata(item, "name") and not _metadata(item, "generateName"):
        raise InputError(document, "metadata.name", "is missing; add it")
    if "spec" not in item:
        raise InputError(document, "spec", "is missing; add it")
    try:
        spec = PromptPrefixSpec.model_validate(item["spec"])
    except ValidationError as error:
        complaints = list(validation_errors(document, error, "spec"))
        raise ExceptionGroup("spec", complaints) from error
    payload, places = _content(document, _metadata(item, "namespace"), spec.content, sources)
    fingerprint = _fingerprint(document, spec.model, payload, places)
    return Declared(
        document, spec.model, payload, places, fingerprint, spec.lint, spec, item["metadata"]
    )


def _content(
    document: str, namespace: str, content: Content, sources: Sources
) -> tuple[Payload, Mapping[str, str]]:
    """Return the text and the places of its fields."""
    if content.inline is not None:
        return content.inline.payload(), INLINE
    if content.secretRef is not None:
        field = "spec.content.secretRef.name"
        secret = _source(document, field, (SECRET, namespace, content.secretRef.name), sources)
        plain = _strings(document, field, secret, "stringData")
        encoded = _strings(document, field, secret, "data")
        encoded |= {key: b64encode(text.encode()).decode() for key, text in plain.items()}
        places = DATA | {key: f"stringData.{key}" for key in CONTENT_FIELDS if key in plain}
        return _read(document, field, secret, Payload.from_secret, encoded), places
    field = "spec.content.configMapRef.name"
    name = content.configMapRef.name if content.configMapRef is not None else ""
    config_map = _source(document, field, (CONFIG_MAP, namespace, name), sources)
    data = _strings(document, field, config_map, "data")
    return _read(document, field, config_map, Payload.from_data, data), DATA


def _source(
    document: str, field: str, key: tuple[str, str, str], sources: Sources
) -> Mapping[str, Any]:
    if (found := sources.get(key)) is not None:
        return found
    kind, namespace, name = key
    where = f" of namespace {namespace}" if namespace else ""
    message = (
        f"the {kind} {name}{where} is not in the input; include its manifest "
        "(nothing is read from a cluster)"
    )
    raise InputError(document, field, message)


def _strings(document: str, field: str, source: Mapping[str, Any], key: str) -> dict[str, str]:
    values = source.get(key)
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(v, str) for v in values.values()):
        message = f"the {_named(source)} must have {key}, all of it strings"
        raise InputError(document, field, message)
    return dict(values)


def _read(
    document: str,
    field: str,
    source: Mapping[str, Any],
    read: Callable[[Mapping[str, str]], Payload],
    data: Mapping[str, str],
) -> Payload:
    try:
        return read(data)
    except PayloadError as error:
        raise InputError(document, field, f"the {_named(source)}: {error}") from error


def _named(source: Mapping[str, Any]) -> str:
    return f"{source['kind']} {_metadata(source, 'name')}"


def _request(document: str, body: Mapping[Any, Any]) -> Declared:
    shape = shape_of(body)
    try:
        part = shape.immutable_part(body)
        fingerprint = part.fingerprint
    except UndeclaredError as error:
        raise InputError(document, error.field, remedy(error.cause, shape)) from error
    except CanonicalError as error:
        raise InputError(document, "", str(error)) from error
    payload = Payload(
        systemInstructions=part.system,
        toolDefinitions=json.dumps(part.tools, ensure_ascii=False),
        chatTemplateOptions=json.dumps(part.options, ensure_ascii=False),
    )
    return Declared(document, part.model, payload, places(shape, body), fingerprint)


def _fingerprint(document: str, model: str, payload: Payload, places: Mapping[str, str]) -> str:
    try:
        fingerprint = payload_fingerprint(model, payload)
    except PayloadError as error:
        message = str(error).removeprefix(f"{error.field}: ")
        raise InputError(
            document, places.get(error.field, f"spec.{error.field}"), message
        ) from error
    if payload.empty:
        message = "declares neither a system text nor a tool; add one"
        raise InputError(document, "spec.content", message)
    return fingerprint


def _metadata(item: Mapping[Any, Any], key: str) -> str:
    metadata = item.get("metadata")
    value = metadata.get(key) if isinstance(metadata, Mapping) else None
    return value if isinstance(value, str) else ""
