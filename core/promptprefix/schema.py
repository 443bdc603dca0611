"""Structural OpenAPI v3 schemas, the dialect of Kubernetes, out of pydantic models.

A structural schema has no references, no titles and no ``additionalProperties: false`` (the API
server prunes or refuses unknown fields by itself), and a type at every place. Source: "Specifying
a structural schema" in the Kubernetes documentation of CustomResourceDefinition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

Schema: TypeAlias = dict[str, Any]

INT_OR_STRING = "x-kubernetes-int-or-string"
VALIDATIONS = "x-kubernetes-validations"

DROPPED = ("title", "$defs", "default")
KEPT = (
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "required",
    "type",
)
HANDLED = frozenset({"items", "additionalProperties", "properties", "anyOf", "const", "type"})


class Strict(BaseModel):
    """Base of spec models: what isn't declared isn't accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def cel(rule: str, message: str) -> dict[str, str]:
    """Return one entry of ``x-kubernetes-validations``."""
    return {"rule": rule, "message": message}


def rules(*entries: dict[str, str]) -> Schema:
    """Return the schema extra that carries CEL ``entries``."""
    return {VALIDATIONS: list(entries)}


class SchemaError(ValueError):
    """A model uses something that a structural schema can't say."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of ``model``; raise `SchemaError` if it has none."""
    schema = model.model_json_schema()
    return _structural(schema, schema.get("$defs", {}), model.__name__)


def _structural(node: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    node = _without_null(_resolved(node, defs), path)
    if "$ref" in node:
        return _structural(node, defs, path)
    if "const" in node:
        node = {**node, "enum": [node["const"]]}
    result: Schema = {key: node[key] for key in KEPT if key in node}
    result |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if node.get(INT_OR_STRING):
        result.pop("type", None)
    elif "type" not in node:
        raise SchemaError(f"{path} has no single type: {sorted(node)}")
    unknown = set(node) - set(result) - set(DROPPED) - HANDLED
    if unknown:
        raise SchemaError(f"{path} uses {sorted(unknown)}")
    if node.get("type") == "integer":
        result["format"] = "int64"
    default = _default(node.get("default"))
    if default is not None:
        result["default"] = default
    if "items" in node:
        result["items"] = _structural(node["items"], defs, f"{path}[]")
    if isinstance(node.get("additionalProperties"), Mapping):
        values = _structural(node["additionalProperties"], defs, f"{path}.*")
        result["additionalProperties"] = values
    if "properties" in node:
        result["properties"] = {
            name: _structural(item, defs, f"{path}.{name}")
            for name, item in node["properties"].items()
        }
    return result


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the definition in place of a reference; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    target = defs[node["$ref"].removeprefix("#/$defs/")]
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return {**target, **beside}


def _without_null(node: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Turn "this or null" into this: an absent field is how Kubernetes says null."""
    if "anyOf" not in node or node.get(INT_OR_STRING):
        return node
    others = [item for item in node["anyOf"] if item.get("type") != "null"]
    if len(others) != 1:
        raise SchemaError(f"{path} is a union of {len(others)} types")
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    return {**others[0], **beside}


def _default(value: Any) -> Any:
    """Return what of a default is worth writing into every stored object: no empty values."""
    if isinstance(value, Mapping):
        kept = {key: _default(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None} or None
    return None if value in ("", []) else value
