"""The models of the resource refuse what the API server refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from promptprefix.resource import LabelSelector, Pinning, PromptPrefixSpec


def spec(**fields: Any) -> dict[str, Any]:
    """Return a good spec with fields replaced."""
    return {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
        "content": {"inline": {"systemInstructions": "x"}},
        **fields,
    }


def selector(**fields: Any) -> dict[str, Any]:
    return {"pods": {"selector": fields}}


def expression(**fields: Any) -> dict[str, Any]:
    return selector(matchExpressions=[fields])


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": ""}, "model"),
        ({"model": "m" * 513}, "model"),
        ({"content": {}}, "content"),
        ({"content": {"inline": {}, "configMapRef": {"name": "a"}}}, "content"),
        ({"content": {"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}}, "content"),
        ({"content": {"secretRef": {"name": "A"}}}, "content.secretRef.name"),
        ({"content": {"secretRef": {"name": "a", "key": "b"}}}, "content.secretRef.key"),
        ({"content": {"configMapRef": {"name": "A"}}}, "content.configMapRef.name"),
        (
            {"content": {"inline": {"systemInstructions": "x" * 262_145}}},
            "content.inline.systemInstructions",
        ),
        (selector(), "pods.selector"),
        (selector(matchLabels={}), "pods.selector"),
        (selector(matchLabels={"a": "b c"}), "pods.selector.matchLabels.a"),
        (expression(key="a", operator="In"), "pods.selector.matchExpressions.0"),
        (expression(key="a", operator="Exists", values=["b"]), "pods.selector.matchExpressions.0"),
        (expression(key="a b", operator="Exists"), "pods.selector.matchExpressions.0.key"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": 10_001}, "replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"replicas": "50%"}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"replicas": 1.0}, "replicas"),
        ({"replicas": None}, "replicas"),
        ({"pinning": "hard"}, "pinning"),
        ({"lint": {"ignore": ["Short Prefix"]}}, "lint.ignore.0"),
        ({"priority": 1}, "priority"),
        ({"windows": []}, "windows"),
        ({"idleTTL": "600s"}, "idleTTL"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PromptPrefixSpec.model_validate(spec(**fields))
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [place]


@pytest.mark.parametrize("replicas", [1, 2, 10_000, "All"])
def test_replicas(replicas: int | str) -> None:
    assert PromptPrefixSpec.model_validate(spec(replicas=replicas)).replicas == replicas


def test_defaults() -> None:
    smallest = PromptPrefixSpec.model_validate(spec())
    assert (smallest.replicas, smallest.pinning, smallest.suspend) == ("All", Pinning.HARD, False)
    assert smallest.content.inline is not None
    assert smallest.content.inline.payload().tools == []


LABELS = {"app": "vllm", "tier": ""}


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({"matchLabels": {"app": "vllm"}}, True),
        ({"matchLabels": {"tier": ""}}, True),
        ({"matchLabels": {"app": "vllm", "zone": "a"}}, False),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "vllm"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["vllm"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, True),
        (
            {
                "matchLabels": {"app": "vllm"},
                "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["vllm"]}],
            },
            False,
        ),
    ],
)
def test_selector(fields: dict[str, Any], matches: bool) -> None:
    assert LabelSelector.model_validate(fields).matches(LABELS) is matches
