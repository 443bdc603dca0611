"""What tests look at in an injected pod."""

from __future__ import annotations

from typing import Any

from promptprefix_operator.injection.injector import Injection, inject

from .pods import OPTIONS, Json, patched


def injected(before: Json) -> tuple[Injection, Json]:
    injection = inject(before, "ml", OPTIONS)
    return injection, patched(before, injection.operations)


def engine(after: Json) -> Json:
    found: Json = after["spec"]["containers"][0]
    return found


def sidecar(after: Json) -> Json:
    (found,) = (c for c in after["spec"]["initContainers"] if c["name"] == "promptprefix-sidecar")
    return dict(found)


def variables(container: Json) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def assert_kept(before: Any, after: Any) -> None:
    """Assert that lists only grew at their end and that objects kept their members."""
    if isinstance(before, dict):
        for name, value in before.items():
            assert_kept(value, after[name])
    elif isinstance(before, list):
        for one, other in zip(before, after, strict=False):
            assert_kept(one, other)
        assert len(after) >= len(before)
    else:
        assert after == before
