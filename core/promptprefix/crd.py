"""The CustomResourceDefinition of PromptPrefix, generated from the models of `resource`."""

from __future__ import annotations

from typing import Any

from promptprefix import resource
from promptprefix.schema import Schema, structural_schema

NAME = f"{resource.PLURAL}.{resource.GROUP}"
FILE_NAME = f"{NAME}.yaml"

DESCRIPTION = (
    "A prompt prefix: the text that many requests begin with (system instructions, tools, mode "
    "specs), kept computed and protected from eviction in the KV cache of chosen vLLM pods."
)

UNOBSERVED: Schema = {"observedGeneration": 0}
"""The status of an object that nobody has looked at yet: generations begin with 1, so kstatus says
InProgress. Without a status it says Current."""

READY = '.status.conditions[?(@.type=="Ready")].status'

COLUMNS: tuple[dict[str, Any], ...] = (
    {
        "name": "Ready",
        "type": "string",
        "jsonPath": READY,
        "description": "Whether the spec is accepted and the state wanted now is reached.",
    },
    {
        "name": "Warm",
        "type": "string",
        "jsonPath": ".status.warm",
        "description": "Warm pods of desired pods.",
    },
    {
        "name": "Tokens",
        "type": "integer",
        "jsonPath": ".status.tokens",
        "description": "Tokens of the reusable head.",
    },
    {
        "name": "Window",
        "type": "string",
        "jsonPath": ".status.activeWindow",
        "description": "Name of the peak window that is open.",
    },
    {
        "name": "Fingerprint",
        "type": "string",
        "jsonPath": ".status.fingerprint",
        "priority": 1,
        "description": "Identity of the declared text.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)


def root_schema() -> Schema:
    """Return the schema of the whole object."""
    spec = structural_schema(resource.PromptPrefixSpec)
    status = structural_schema(resource.PromptPrefixStatus)
    return {
        "type": "object",
        "description": DESCRIPTION,
        "required": ["spec"],
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": f"Version of the schema: {resource.API_VERSION}.",
            },
            "kind": {"type": "string", "description": f"Kind of the object: {resource.KIND}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status | {"default": UNOBSERVED},
        },
    }


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as ``apiextensions.k8s.io/v1`` writes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": resource.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.KIND,
                "listKind": f"{resource.KIND}List",
                "plural": resource.PLURAL,
                "singular": resource.SINGULAR,
                "shortNames": list(resource.SHORT_NAMES),
                "categories": list(resource.CATEGORIES),
            },
            "versions": [
                {
                    "name": resource.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(COLUMNS),
                    "schema": {"openAPIV3Schema": root_schema()},
                }
            ],
        },
    }
