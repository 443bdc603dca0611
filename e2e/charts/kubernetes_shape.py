"""Objects held against the official client's models: unknown fields, missing ones, wrong types.

The models are those of the newest Kubernetes; an API server in strict mode is the last word.
"""

from __future__ import annotations

import json
from typing import Any

from kubernetes.client import ApiClient

from e2e.charts.render import Object

_MODELS = {
    "apps/v1": "V1",
    "autoscaling/v2": "V2",
    "coordination.k8s.io/v1": "V1",
    "admissionregistration.k8s.io/v1": "V1",
    "apiextensions.k8s.io/v1": "V1",
    "networking.k8s.io/v1": "V1",
    "policy/v1": "V1",
    "rbac.authorization.k8s.io/v1": "V1",
    "scheduling.k8s.io/v1": "V1",
    "v1": "V1",
}
"""Prefix of the model's name by apiVersion."""


def faults(each: Object) -> list[str]:
    """Return what the model of the object's kind doesn't know or misses, each with its path.

    Nothing is known of kinds that a CustomResourceDefinition defines.
    """
    prefix = _MODELS.get(each["apiVersion"])
    if prefix is None:
        return []
    client = ApiClient()
    try:
        model = client.deserialize(json.dumps(each), f"{prefix}{each['kind']}", "application/json")
    except ValueError as error:
        return [str(error)]
    return _differences(each, client.sanitize_for_serialization(model), "")


def _differences(given: Any, understood: Any, path: str) -> list[str]:
    if isinstance(given, dict) and isinstance(understood, dict):
        found = [f"{path}.{key} is no field" for key in given.keys() - understood.keys()]
        for key in given.keys() & understood.keys():
            found += _differences(given[key], understood[key], f"{path}.{key}")
        return found
    if isinstance(given, list) and isinstance(understood, list):
        return [
            fault
            for index, (left, right) in enumerate(zip(given, understood, strict=True))
            for fault in _differences(left, right, f"{path}[{index}]")
        ]
    if type(given) is not type(understood) or given != understood:
        return [f"{path} is {understood!r} to Kubernetes, not {given!r}"]
    return []
