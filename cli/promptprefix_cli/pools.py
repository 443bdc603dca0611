"""InferencePools of an input: which pods they select."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import ValidationError

from promptprefix.selector import LabelSelector
from promptprefix_cli.declared import Declared
from promptprefix_cli.input_error import InputError, validation_errors

PoolSelectors: TypeAlias = Mapping[tuple[str, str], LabelSelector]
"""Selectors of InferencePools by namespace and name."""

KIND = "InferencePool"
GROUP = "inference.networking.k8s.io"
FIELD = "spec.pods.inferencePoolRef.name"
_MADE_UP = "inferencepool"


def described_pools(objects: Iterable[tuple[str, Any]]) -> dict[tuple[str, str], LabelSelector]:
    """Return the selectors of the InferencePools among labelled documents."""
    found = {}
    for label, item in objects:
        if not isinstance(item, Mapping) or item.get("kind") != KIND:
            continue
        if not str(item.get("apiVersion", "")).startswith(f"{GROUP}/"):
            continue
        metadata, spec = _mapping(item, "metadata"), _mapping(item, "spec")
        name = str(metadata.get("name", ""))
        document = f"{label} ({KIND} {name})"
        try:
            selector = LabelSelector.model_validate(spec.get("selector"))
        except ValidationError as error:
            raise next(iter(validation_errors(document, error, "spec.selector"))) from error
        found[str(metadata.get("namespace", "")), name] = selector
    return found


def with_made_up(declared: Iterable[Declared], known: PoolSelectors) -> PoolSelectors:
    """Return also selectors of the InferencePools that are named and not described."""
    made_up = {
        (namespace, name): LabelSelector(matchLabels={_MADE_UP: f"{name:.63}".rstrip("-.")})
        for _, namespace, name in _named(declared)
    }
    return made_up | dict(known)


def undescribed(declared: Iterable[Declared], known: PoolSelectors) -> list[InputError]:
    """Return what is wrong with an input that says neither which pods a pool selects."""
    return [
        InputError(
            document,
            FIELD,
            f"the {KIND} {name}{f' of namespace {namespace}' if namespace else ''} is not in the "
            "input; include its manifest (nothing is read from a cluster)",
        )
        for document, namespace, name in _named(declared)
        if (namespace, name) not in known
    ]


def pool_selector(declared: Declared, known: PoolSelectors) -> LabelSelector | None:
    """Return the selector of the InferencePool that a manifest names; None if it names none."""
    named = next(_named([declared]), None)
    return None if named is None else known.get(named[1:])


def _named(declared: Iterable[Declared]) -> Iterator[tuple[str, str, str]]:
    """Yield document, namespace and name of each reference."""
    for each in declared:
        reference = each.spec.pods.inferencePoolRef if each.spec is not None else None
        if reference is not None:
            yield each.document, str(each.metadata.get("namespace") or ""), reference.name


def _mapping(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = item.get(key)
    return value if isinstance(value, Mapping) else {}
