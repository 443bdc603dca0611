"""The models of the resource refuse what the API server refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from promptprefix.resource import LabelSelector, OnIdle, Pinning, PromptPrefixSpec


def spec(**fields: Any) -> dict[str, Any]:
    """Return a good spec with fields replaced."""
    return {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
        "content": {"inline": {"systemInstructions": "x"}},
        **fields,
    }


def window(**fields: str) -> dict[str, Any]:
    """Return a good window with fields replaced."""
    good = {"name": "office", "schedule": "30 7 * * MON-FRI", "duration": "11h"}
    return {"windows": [good | fields]}


POOL = {"inferencePoolRef": {"name": "llm"}}


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
        ({"pods": {}}, "pods"),
        ({"pods": {**selector(matchLabels={"a": "b"})["pods"], **POOL}}, "pods"),
        ({"pods": {"inferencePoolRef": {"name": "A"}}}, "pods.inferencePoolRef.name"),
        ({"pods": {"inferencePoolRef": {"name": "a", "kind": "b"}}}, "pods.inferencePoolRef.kind"),
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
        ({"replicas": "0%"}, "replicas"),
        ({"replicas": "101%"}, "replicas"),
        ({"replicas": "050%"}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"replicas": 1.0}, "replicas"),
        ({"replicas": None}, "replicas"),
        ({"pinning": "hard"}, "pinning"),
        ({"lint": {"ignore": ["Short Prefix"]}}, "lint.ignore.0"),
        ({"priority": 1_001}, "priority"),
        ({"priority": -1_001}, "priority"),
        ({"idleTTL": "0s"}, "idleTTL"),
        ({"idleTTL": "10"}, "idleTTL"),
        ({"idleTTL": "-5m"}, "idleTTL"),
        ({"idleTTL": "8785h"}, "idleTTL"),
        ({"onIdle": "Drop"}, "onIdle"),
        ({"cacheSaltRef": {"key": "salt"}}, "cacheSaltRef.name"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "Tenant"}, "tenant"),
        ({"tenant": "a,b"}, "tenant"),
        ({"tenant": "-a"}, "tenant"),
        ({"tenant": "a" * 64}, "tenant"),
        (window(name="Office"), "windows.0.name"),
        (window(duration="0h0m"), "windows.0.duration"),
        (window(duration="9000h"), "windows.0.duration"),
        (window(leadTime="0s"), "windows.0.leadTime"),
        (window(timeZone="../etc"), "windows.0.timeZone"),
        (window(schedule="@daily"), "windows.0.schedule"),
        ({"windows": window()["windows"] * 2}, "windows"),
        ({"normaliseRequests": True}, "normaliseRequests"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PromptPrefixSpec.model_validate(spec(**fields))
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [place]


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [(1, 1), (2, 2), (10_000, 10_000), ("All", 7), ("1%", 1), ("50%", 4), ("100%", 7)],
)
def test_replicas(replicas: int | str, wanted: int) -> None:
    read = PromptPrefixSpec.model_validate(spec(replicas=replicas))
    assert (read.replicas, read.pods_wanted(7)) == (replicas, wanted)


def test_defaults() -> None:
    smallest = PromptPrefixSpec.model_validate(spec())
    assert (smallest.replicas, smallest.pinning, smallest.suspend) == ("All", Pinning.HARD, False)
    assert (smallest.windows, smallest.idleTTL, smallest.onIdle) == ([], None, OnIdle.KEEP)
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
