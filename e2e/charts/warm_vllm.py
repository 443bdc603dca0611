"""Views of what the chart warm-vllm renders to."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from e2e.charts.render import Object, Values, of_kind, pod_spec_of, render

WEBHOOK: Values = {"warming": {"mode": "webhook"}}
PLAIN: Values = {"warming": {"enabled": False}}
KEYS: Values = {"apiKey": {"existingSecret": "keys"}, "hfToken": {"existingSecret": "hub"}}
EVENTS: Values = {"kvEvents": {"enabled": True}}


def objects(values: Values | None = None, **options: Any) -> list[Object]:
    """Return all objects of a release; ``options`` are those of `render`.

    Equal questions are asked of Helm once.
    """
    return copy.deepcopy(_objects(json.dumps(values or {}), json.dumps(options)))


@functools.cache
def _objects(values: str, options: str) -> list[Object]:
    given = json.loads(values)
    return render("warm-vllm", given, release="qwen", namespace="ml", **json.loads(options))


def deployment(values: Values | None = None, **options: Any) -> Object:
    """Return the engine's Deployment."""
    (found,) = of_kind(objects(values, **options), "Deployment")
    return found


def pod(values: Values | None = None, **options: Any) -> Object:
    """Return the spec of its pods."""
    spec = pod_spec_of(deployment(values, **options))
    assert spec is not None
    return spec


def engine(values: Values | None = None, **options: Any) -> Object:
    """Return their only container beside ours."""
    (found,) = pod(values, **options)["containers"]
    return dict(found)


def environment(container: Object) -> dict[str, Any]:
    """Return the container's variables: a text, or what ``valueFrom`` says."""
    variables = {
        each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]
    }
    assert len(variables) == len(container["env"])
    return variables


def flags(container: Object) -> dict[str, str]:
    """Return the engine's flags with their values, "" where a flag has none."""
    arguments = [text for text in container["args"] if text.startswith("--")]
    assert len(set(arguments)) == len(arguments)
    following = dict(zip(container["args"], [*container["args"][1:], "--"], strict=True))
    return {flag: "" if following[flag].startswith("--") else following[flag] for flag in arguments}
