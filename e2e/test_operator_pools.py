"""The operator where resources name an InferencePool: missing, changed, gone, forbidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.charts.render import named
from e2e.cluster import Cluster
from e2e.operator_stand import (
    apply,
    conditions,
    control_plane,
    installed,
    manifest,
    operator,
    ready,
    sidecars,
    until,
)
from e2e.tools.third_party import definitions

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

CRD = "inferencepools.inference.networking.k8s.io"
BY_POOL: dict[str, Any] = {"pods": {"inferencePoolRef": {"name": "llm"}}}
WARM = ("True", "Warm", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


@pytest.fixture(scope="module")
def definition() -> Path:
    [found] = [each for each in definitions(print) if CRD.partition(".")[0] in each.name]
    return found


def install(server: Cluster, definition: Path) -> None:
    server.kubectl("apply", "--server-side", "-f", str(definition))
    server.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")


def make_pool(server: Cluster, **labels: str) -> None:
    body: dict[str, Any] = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "llm", "namespace": "ml"},
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }
    apply(server, json.dumps(body))


def told(server: Cluster, name: str = "pooled") -> str:
    return str(conditions(server, name)["Ready"]["message"])


async def test_a_pool_that_comes_late_changes_goes_and_comes_again(
    server: Cluster, definition: Path, tmp_path: Path
) -> None:
    server.kubectl("label", "pod", "vllm-1", "-n", "ml", "tier=one")
    async with (
        operator(server, tmp_path, RESYNC_SECONDS="2") as running,
        sidecars(server, running) as fakes,
    ):

        def holding() -> list[int]:
            return [len(each.held) for each in fakes]

        apply(server, manifest("pooled", **BY_POOL))
        apply(server, manifest("plain", text="Another text. " * 100))
        await until(lambda: ready(server, "pooled")[1] == "PoolNotFound")
        assert "does not serve inference.networking.k8s.io/v1" in told(server)
        await until(lambda: ready(server, "plain") == WARM)

        install(server, definition)
        await until(lambda: "spec.pods.inferencePoolRef.name" in told(server))
        make_pool(server, app="vllm")
        await until(lambda: ready(server, "pooled") == WARM)
        assert holding() == [2, 2]
        make_pool(server, app="vllm", tier="one")
        await until(lambda: holding() == [1, 2])
        await until(lambda: ready(server, "pooled") == WARM)

        server.kubectl("delete", "inferencepool", "llm", "-n", "ml")
        await until(lambda: ready(server, "pooled")[1] == "PoolNotFound")
        assert holding() == [1, 2], "what was warm stays so"
        make_pool(server, app="nothing")
        await until(lambda: ready(server, "pooled")[1] == "NoMatchingPods")
        assert "InferencePool llm" in told(server)
        make_pool(server, app="vllm")
        await until(lambda: holding() == [2, 2])

        server.kubectl("delete", "crd", CRD, "--timeout=30s")
        await until(lambda: ready(server, "pooled")[1] == "PoolNotFound")
        install(server, definition)
        make_pool(server, app="vllm", tier="one")
        await until(lambda: holding() == [1, 2], 60)
        await until(lambda: ready(server, "pooled") == WARM)
        assert ready(server, "plain") == WARM
        # The API server answers 429 while it takes in a new kind; kopf tries again and says so.
        assert [each for each in running.errors if "status=429" not in each["event"]] == []
        server.kubectl("delete", "promptprefix", "--all", "-n", "ml", "--timeout=5s")


async def test_without_the_right_it_is_told_and_nothing_else_suffers(
    server: Cluster, definition: Path, tmp_path: Path
) -> None:
    install(server, definition)
    make_pool(server, app="vllm")
    role = named(installed("ml", ("Role",)), "Role", "promptprefix-operator-served", "ml")
    granted = role["rules"]
    role["rules"] = [each for each in granted if "inferencepools" not in each["resources"]]
    assert len(role["rules"]) == len(granted) - 1
    apply(server, json.dumps(role))
    async with (
        operator(server, tmp_path, RESYNC_SECONDS="2") as running,
        sidecars(server, running),
    ):
        apply(server, manifest("pooled", **BY_POOL))
        apply(server, manifest("plain", text="Another text. " * 100))
        await until(lambda: ready(server, "pooled")[1] == "PoolForbidden")
        assert "chart's value inferencePools" in told(server)
        assert conditions(server, "pooled")["Stalled"]["status"] == "False"
        await until(lambda: ready(server, "plain") == WARM)
        role["rules"] = granted
        apply(server, json.dumps(role))
        await until(lambda: ready(server, "pooled") == WARM)
        assert running.errors == []
        server.kubectl("delete", "promptprefix", "--all", "-n", "ml", "--timeout=5s")
