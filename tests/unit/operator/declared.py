"""Resources with texts, and how they are read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from promptprefix.fleet import Prefix
from promptprefix.payload import Payload
from promptprefix.resource import LintFinding
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations

_TIMES = (datetime(2026, 11, 29, tzinfo=UTC) + timedelta(seconds=5 * n) for n in count())


def later() -> datetime:
    """Return a time at which no edit of an earlier one waits any longer."""
    return next(_TIMES)


def resource(
    content: dict[str, Any] | None = None, version: int = 1, **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": "u-1",
            "namespace": "ml",
            "name": "a",
            "generation": 3,
            "resourceVersion": str(version),
        },
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": content or {"inline": {"systemInstructions": "one"}},
        }
        | spec,
    }


def texts(system: str, version: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": str(version)},
        "data": {"systemInstructions": system, "README": "more"},
    }


class Linter:
    def __init__(self, *findings: LintFinding) -> None:
        self.findings, self.calls = findings, 0

    def __call__(
        self, payload: Payload, *, model: str = "", ignore: Collection[str] = ()
    ) -> list[LintFinding]:
        self.calls += 1
        return [each for each in self.findings if each.rule not in ignore]


def read(declarations: Declarations, cluster: Cluster, body: dict[str, Any]) -> Prefix:
    """Return the prefix once its text is in force."""
    cluster.see_resource(body)
    declarations.prefixes(cluster, later())
    [prefix] = declarations.prefixes(cluster, later())
    return prefix


def edit(text: str, version: int) -> dict[str, Any]:
    return resource({"inline": {"systemInstructions": text}}, version)
