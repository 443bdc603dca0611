"""The chart promptprefix as its tests install it: value sets, and a shorthand for rendering."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from e2e.charts.render import Object, Values, pod_spec_of, render

CHART = "promptprefix"
CERT_MANAGER = "cert-manager.io/v1"

TWO_TEAMS: Values = {"namespaces": ["ml", "chat"]}

EVERYTHING: Values = {
    "namespaces": ["ml", "chat"],
    "contentSecrets": {"ml": ["prompts", "more-prompts"]},
    "limits": {"*": {"maxPriority": 100}, "ml": {"budgetShare": 0.5}},
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClass": {"create": True},
    "webhook": {"certificate": {"source": "certManager"}},
    "router": {"additionalTenants": ["chat"], "autoscaling": {"enabled": True}},
    "metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    "test": {"model": "m", "selector": {"app": "vllm"}},
}
"""Every switch on."""

GATEWAY: Values = {
    "namespaces": ["ml", "chat"],
    "imagePullSecrets": [{"name": "registry"}],
    "router": {
        "mode": "gateway",
        "additionalTenants": ["chat"],
        "gateway": {
            "tls": "files",
            "tlsSecret": "picker-tls",
            "inferencePool": {"selector": {"app": "vllm"}},
        },
    },
    "metrics": {"serviceMonitor": {"enabled": True}},
}
"""Pickers behind gateways of the cluster."""

NOTHING: Values = {
    "crds": {"enabled": False},
    "webhook": {"enabled": False},
    "router": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "operator": {"podDisruptionBudget": {"enabled": False}},
}
"""Every switch off."""

VALUE_SETS = {
    "defaults": {},
    "teams": TWO_TEAMS,
    "everything": EVERYTHING,
    "gateway": GATEWAY,
    "nothing": NOTHING,
}


def objects(values: Values | None = None, **options: Any) -> list[Object]:
    """Return what the chart renders to; equal questions are asked of Helm once."""
    return copy.deepcopy(_objects(json.dumps(values or {}), json.dumps(options)))


def pods(values: Values | None = None, **options: Any) -> dict[str, Object]:
    """Return the pods' specs by the names of their owners."""
    found = ((each["metadata"]["name"], pod_spec_of(each)) for each in objects(values, **options))
    return {name: spec for name, spec in found if spec is not None}


def container(spec: Object, name: str) -> Object:
    """Return a pod's container."""
    (found,) = (
        each
        for each in [*spec.get("initContainers", ()), *spec["containers"]]
        if each["name"] == name
    )
    return dict(found)


def environment(each: Object) -> dict[str, Any]:
    """Return a container's variables: a text, or what ``valueFrom`` says."""
    variables = {item["name"]: item.get("value", item.get("valueFrom")) for item in each["env"]}
    assert len(variables) == len(each["env"]), "a variable stands twice"
    return variables


def changed(values: Values, path: str, value: object) -> dict[str, Any]:
    """Return ``values`` with one of them set."""
    result: dict[str, Any] = copy.deepcopy(dict(values))
    *parents, last = path.split(".")
    place = result
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return result


@functools.cache
def _objects(values: str, options: str) -> list[Object]:
    return render(CHART, json.loads(values), **json.loads(options))
