"""References are replaced as the kubelet replaces them."""

from __future__ import annotations

from typing import Any

import pytest

from promptprefix_operator.injection.environment import (
    MAX_ADDED_CHARS,
    Environment,
    environment_of,
    has_unknown,
)
from promptprefix_operator.injection.pod import Container, Pod

from .pods import SECRET, Json

IP = {"fieldRef": {"fieldPath": "status.podIP"}}


def read(*env: Json, labels: dict[str, str] | None = None, **fields: Any) -> Environment:
    pod = Pod.model_validate({"metadata": {"labels": labels}, "spec": {"containers": []}})
    container = Container.model_validate({"name": "vllm", "env": list(env), **fields})
    return environment_of(container, pod)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(PORT)", "8000"),
        ("a$(PORT)b$(PORT)", "a8000b8000"),
        ("$$(PORT)", "$(PORT)"),
        ("$$$(PORT)", "$8000"),
        ("$PORT", "$PORT"),
        ("$(OTHER)", "$(OTHER)"),
        ("$(PORT", "$(PORT"),
        ("$(LATE)", "$(BEHIND)"),
        ("$(EARLY)", "x8000"),
        ("$(EMPTY)", ""),
        ("$", "$"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    environment = read(
        {"name": "LATE", "value": "$(BEHIND)"},
        {"name": "PORT", "value": "1"},
        {"name": "PORT", "value": "8000"},
        {"name": "EARLY", "value": "x$(PORT)"},
        {"name": "BEHIND", "value": "y"},
        {"name": "EMPTY", "value": None},
    )
    assert environment.expand(text) == expanded


def test_a_value_from_elsewhere_is_handed_on_as_it_is() -> None:
    environment = read({"name": "KEY", "valueFrom": SECRET})
    text = environment.expand("$(KEY)")
    assert environment.definitions("OURS", text) == [{"name": "OURS", "valueFrom": SECRET}]


def test_a_part_from_elsewhere_is_referred_to() -> None:
    environment = read(
        {"name": "KEY", "valueFrom": SECRET}, {"name": "ALL", "value": "$$(A)-$(KEY)-$(KEY)"}
    )
    assert environment.definitions("OURS", environment.expand("$(ALL)")) == [
        {"name": "PROMPTPREFIX_FROM_ENGINE_KEY", "valueFrom": SECRET},
        {
            "name": "OURS",
            "value": "$$(A)-$(PROMPTPREFIX_FROM_ENGINE_KEY)-$(PROMPTPREFIX_FROM_ENGINE_KEY)",
        },
    ]


def test_a_literal_keeps_its_dollars() -> None:
    assert read().definitions("OURS", "a$$b$(C)") == [{"name": "OURS", "value": "a$$$$b$$(C)"}]


def test_labels_of_the_pod_are_known() -> None:
    path = "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
    environment = read(
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": path}}},
        {"name": "IP", "valueFrom": IP},
        labels={"leaderworkerset.sigs.k8s.io/worker-index": "2"},
    )
    assert environment.expand("$(RANK)") == "2"
    assert environment.expand("$(IP)") not in ("", "$(IP)")


@pytest.mark.parametrize(
    ("prefix", "name", "may"),
    [("", "A", True), ("VLLM_", "VLLM_A", True), ("VLLM_", "A", False), (None, "A", True)],
)
def test_sources_of_many_may_define(prefix: str | None, name: str, may: bool) -> None:
    environment = read(envFrom=[{"prefix": prefix, "secretRef": {"name": "all"}}])
    assert environment.may_define(name) is may
    assert not read().may_define(name)


def test_references_cannot_multiply_without_end() -> None:
    doubled = [{"name": f"V{i}", "value": f"$(V{i - 1})$(V{i - 1})"} for i in range(1, 64)]
    environment = read({"name": "V0", "value": "x" * 100}, *doubled)
    assert sum(map(len, environment.values.values())) < 2 * MAX_ADDED_CHARS + 1_000
    text = environment.expand("$(V63)")
    assert has_unknown(text)
