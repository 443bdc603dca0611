"""``promptprefix plan``: what fits on which pods, and who loses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from promptprefix_cli.main import app

TOKENS = 160
"""Of what `manifest` declares, by estimate: ten blocks of 16. One is the empty list of tools."""


def run(text: str, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", "-f", "-", *arguments], input=text)
    return result.exit_code, result.stdout, result.stderr


def planned(text: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, output, errors = run(text, *arguments, "-o", "json")
    assert not errors
    return code, json.loads(output)


def manifest(name: str, /, content: dict[str, Any] | None = None, **spec: Any) -> str:
    body = {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
            "content": content or {"inline": {"systemInstructions": "abcd" * (TOKENS - 1)}},
        }
        | spec,
    }
    return "---\n" + yaml.safe_dump(body)


def pod(name: str, zone: str = "", **labels: str) -> dict[str, Any]:
    zoned = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {"app": "vllm"} | zoned | labels},
        "spec": {"nodeName": f"node-{name}"},
        "status": {"phase": "Running"},
    }


def pod_list(*pods: dict[str, Any]) -> str:
    return "---\n" + yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(pods)})


def test_all_that_fits_is_told_by_prefix_and_by_pod() -> None:
    code, output, errors = run(
        manifest("a", replicas=2) + manifest("b", replicas=1), "--pods", "2", "--blocks", "40"
    )
    assert (code, errors) == (0, "")
    assert (
        output
        == (
            "PREFIX  PRIORITY  BLOCKS  PODS  HELD ON\n"
            "ml/a    0         10      2/2   pod-0, pod-1\n"
            "ml/b    0         10      1/1   pod-0\n"
            "\n"
            "POD       ZONE  PINNED  PREFIXES\n"
            "ml/pod-0  -     20/20   a, b\n"
            "ml/pod-1  -     10/20   a\n"
        )
        or "ml/b    0         10      1/1   pod-1\n" in output
    )


def pool(**labels: str) -> str:
    body = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "llm", "namespace": "ml"},
        "spec": {"selector": {"matchLabels": labels}},
    }
    return "---\n" + yaml.safe_dump(body)


BY_POOL = {"inferencePoolRef": {"name": "llm"}}


def test_an_inference_pool_of_the_input_selects_the_pods() -> None:
    text = manifest("a", pods=BY_POOL) + pool(tier="one")
    text += pod_list(pod("p", tier="one"), pod("q", tier="two"))
    code, found = planned(text, "--blocks=100")
    assert (code, found["prefixes"][0]["pods"]) == (0, ["p"])
    code, found = planned(manifest("a", pods=BY_POOL) + manifest("b"), "--pods=2", "--blocks=100")
    assert [each["pods"] for each in found["prefixes"]] == [["pod-0", "pod-1"], ["pod-2", "pod-3"]]
    _, found = planned(
        manifest("a", pods=BY_POOL) + pool(app="vllm") + manifest("b"), "--pods=1", "--blocks=100"
    )
    assert len(found["pods"]) == 1, "it selects the same"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("", "spec.pods.inferencePoolRef.name: the InferencePool llm of namespace ml is not in"),
        (pool(), "(InferencePool llm): spec.selector"),
    ],
)
def test_a_pool_that_says_not_which_pods_is_bad_input(extra: str, message: str) -> None:
    code, _, errors = run(manifest("a", pods=BY_POOL) + extra + pod_list(pod("p")), "--blocks=100")
    assert code == 2
    assert message in errors


def test_losers_are_told_why_and_end_with_one() -> None:
    prefixes = manifest("low") + manifest("high", priority=5)
    code, output, _ = run(prefixes, "--pods", "1", "--blocks", "20")
    assert code == 1
    assert output.endswith(
        "ml/low: BudgetExceeded: No room for its 10 blocks in the pin budget of 10 of any pod. "
        "Room is taken by high (priority 5, 10 blocks). What would help: a priority above 5, or "
        "shorten texts, lower replicas, add pods or raise the pin budget.\n"
    )
    code, data = planned(prefixes, "--pods", "1", "--blocks", "20")
    assert code == 1
    assert [(row["name"], row["loses"], row["pods"]) for row in data["prefixes"]] == [
        ("low", True, []),
        ("high", False, ["pod-0"]),
    ]
    assert data["pods"] == [
        {
            "namespace": "ml", "name": "pod-0", "zone": "", "budget": 10, "used": 10,
            "prefixes": ["high"],
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        (["--blocks", "20"], True),
        (["--blocks", "18"], False),
        (["--blocks", "18", "--budget", "10"], True),
        (["--blocks", "40", "--budget-share", "0.5"], True),
        (["--blocks", "40", "--budget-share", "0.4"], False),
        (["--blocks", "18", "--block-size", "32"], True),
    ],
)
def test_what_pins_may_hold(options: list[str], fits: bool) -> None:
    code, _ = planned(manifest("a"), "--pods", "1", *options)
    assert code == (0 if fits else 1)


def test_a_cap_makes_priorities_equal_and_the_older_wins() -> None:
    older = manifest("a").replace(
        "metadata:\n", "metadata:\n  creationTimestamp: '2026-01-01T00:00:00Z'\n"
    )
    prefixes = manifest("b", priority=9) + older
    _, data = planned(prefixes, "--pods", "1", "--blocks", "20")
    assert [row["name"] for row in data["prefixes"] if row["loses"]] == ["a"]
    _, data = planned(prefixes, "--pods", "1", "--blocks", "20", "--max-priority", "0")
    assert [row["name"] for row in data["prefixes"] if row["loses"]] == ["b"]


def test_made_up_pods_stand_in_zones_and_serve_each_selector() -> None:
    expression = {"key": "tier", "operator": "In", "values": ["gold", "silver"]}
    other = manifest("b", pods={"selector": {"matchExpressions": [expression]}})
    _, data = planned(
        manifest("a", replicas=2) + other, "--pods", "4", "--zones", "2", "--blocks", "99"
    )
    assert len(data["pods"]) == 8
    held = {row["name"]: row["pods"] for row in data["prefixes"]}
    zones = {row["name"]: row["zone"] for row in data["pods"]}
    assert {zones[name] for name in held["a"]} == {"zone-0", "zone-1"}
    assert not set(held["a"]) & set(held["b"])
    assert len(held["b"]) == 4


def test_pods_of_the_input_are_read_as_kubectl_prints_them() -> None:
    gone = pod("gone") | {"status": {"phase": "Failed"}}
    pods = pod_list(
        pod("p0", "a"), pod("p1", "b"), gone, pod("other", app="nginx"),
        pod("decode", **{"promptprefix.dev/role": "decode"}),
    )  # fmt: skip
    code, data = planned(manifest("a") + pods, "--blocks", "40")
    assert code == 0
    assert data["prefixes"][0]["pods"] == ["p0", "p1"]
    code, output, _ = run(manifest("a", replicas=3) + pods, "--blocks", "40")
    assert code == 1
    assert "ml/a: InsufficientPods: 3 replicas are wanted, but only 2 pods of" in output


def test_texts_are_read_from_config_maps_and_windows_are_left_aside() -> None:
    config = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "text", "namespace": "ml"},
        "data": {"systemInstructions": "x" * 60},
    }  # fmt: skip
    windows = [{"name": "w", "schedule": "0 8 1 1 *", "duration": "1m"}]
    prefix = manifest("a", content={"configMapRef": {"name": "text"}}, windows=windows)
    code, data = planned(prefix + "---\n" + yaml.safe_dump(config), "--pods", "1", "--blocks", "2")
    assert code == 0
    assert data["prefixes"][0]["blocks"] == 1
    assert data["prefixes"][0]["pods"] == ["pod-0"]


def test_what_is_suspended_loses_nothing() -> None:
    code, data = planned(manifest("a", suspend=True), "--pods", "1", "--blocks", "20")
    assert code == 0
    assert data["prefixes"][0] | {"blocks": 0} == {
        "namespace": "ml", "name": "a", "priority": 0, "blocks": 0, "wanted": 0, "pods": [],
        "reason": "Suspended", "message": "", "loses": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        (manifest("a"), ["--blocks", "20"], "error: no pods: give their manifests"),
        ("kind: Nothing\n", ["--blocks", "20", "--pods", "1"], "error: no PromptPrefix"),
        (
            manifest("a") + pod_list({"kind": "Pod"}),
            ["--blocks", "20"],
            "metadata.name: is missing",
        ),
        (manifest("a", replicas=0), ["--blocks", "20", "--pods", "1"], "spec.replicas"),
        (manifest("a"), ["--pods", "1"], "--blocks"),
        (manifest("a"), ["--pods", "1", "--blocks", "20", "--budget-share", "2"], "--budget-share"),
    ],
)
def test_bad_input_ends_with_two(text: str, arguments: list[str], complaint: str) -> None:
    code, output, errors = run(text, *arguments)
    assert (code, output) == (2, "")
    assert complaint in errors
