"""The checker itself: it must see each breach of the standard."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.charts.pod_security import lapses, violations

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "initContainers": [],
    "containers": [
        {
            "name": "app",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {
                "requests": {"cpu": "1", "memory": "1Mi"},
                "limits": {"memory": "1Mi"},
            },
        }
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}
"""A pod that breaks nothing."""


def broken(path: str, value: object) -> dict[str, Any]:
    """Return the good pod with one field set; ``app.`` begins a path in its container."""
    pod = copy.deepcopy(GOOD)
    place: dict[str, Any] = pod["containers"][0] if path.startswith("app.") else pod
    *parents, last = path.removeprefix("app.").split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return pod


def test_a_good_pod_has_no_violation() -> None:
    assert violations(GOOD) == []
    assert lapses(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hostNetwork", True),
        ("hostPID", True),
        ("hostIPC", True),
        ("volumes", [{"name": "v", "hostPath": {"path": "/"}}]),
        ("volumes", [{"name": "v", "nfs": {}}]),
        ("securityContext.sysctls", [{"name": "kernel.msgmax"}]),
        ("securityContext.runAsNonRoot", False),
        ("securityContext.runAsUser", 0),
        ("securityContext.seccompProfile", None),
        ("securityContext.seccompProfile.type", "Unconfined"),
        ("app.securityContext.allowPrivilegeEscalation", None),
        ("app.securityContext.capabilities.drop", ["NET_RAW"]),
        ("app.securityContext.capabilities.add", ["SYS_ADMIN"]),
        ("app.securityContext.privileged", True),
        ("app.securityContext.procMount", "Unmasked"),
        ("app.securityContext.runAsUser", 0),
        ("app.securityContext.seccompProfile.type", "Unconfined"),
        ("app.ports", [{"name": "p", "hostPort": 80}]),
        ("initContainers", [{"name": "i"}]),
    ],
)
def test_a_breach_is_a_violation(path: str, value: object) -> None:
    assert violations(broken(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("app.securityContext.readOnlyRootFilesystem", False),
        ("app.resources.requests", {"cpu": "1"}),
        ("app.resources.limits", {}),
    ],
)
def test_what_we_ask_beyond_it_is_a_lapse(path: str, value: object) -> None:
    pod = broken(path, value)
    assert violations(pod) == []
    assert len(lapses(pod)) == 1
