"""Every rendered object before a real API server: strict fields, all schemas, Pod Security."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.charts import installation, warm_vllm
from e2e.charts.render import NAMESPACE, Object, Values
from e2e.cluster import Cluster
from e2e.tools.third_party import definitions

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

ROOT = Path(__file__).parents[2]
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}
ENGINES: dict[str, Values] = {
    "defaults": {},
    "webhook": warm_vllm.WEBHOOK,
    "plain": warm_vllm.PLAIN,
    "everything": {
        **warm_vllm.KEYS,
        **warm_vllm.EVENTS,
        "offload": {"sizeGiB": 8},
        "podMonitor": {"enabled": True},
        "extraContainers": [],
        "nodeSelector": {"pool": "gpu"},
        "runtimeClassName": "nvidia",
        "autoscaling": {
            "enabled": True,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "vllm_num_requests_waiting"},
                        "target": {"type": "AverageValue", "averageValue": "5"},
                    },
                }
            ],
        },
    },
}
Render = Callable[..., list[Object]]
CASES: dict[str, tuple[Render, Values]] = {
    **{f"promptprefix-{k}": (installation.objects, v) for k, v in installation.VALUE_SETS.items()},
    **{f"warm-vllm-{k}": (warm_vllm.objects, v) for k, v in ENGINES.items()},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane with the CRDs that the charts' objects need, and restricted namespaces."""
    with Cluster.start(progress=print, node=False) as started:
        for file in (ROOT / "crds", *definitions(print)):
            started.kubectl("apply", "--server-side", "-f", str(file))
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for name in (NAMESPACE, "ml", "chat"):
            started.kubectl("create", "namespace", name)
            labels = [f"{key}={value}" for key, value in RESTRICTED.items()]
            started.kubectl("label", "namespace", name, *labels)
        yield started


@pytest.mark.parametrize(("objects_of", "values"), CASES.values(), ids=CASES)
def test_the_api_server_takes_every_object_without_a_warning(
    server: Cluster, objects_of: Render, values: Values
) -> None:
    version = json.loads(server.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    objects = objects_of(values, kube_version=version)
    assert len(objects) > 3
    # Admission of a pod looks these up.
    needed = [each for each in objects if each["kind"] in ("ServiceAccount", "PriorityClass")]
    listed = {"apiVersion": "v1", "kind": "List", "items": needed}
    server.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listed))
    answer = _dry_run(server, {"apiVersion": "v1", "kind": "List", "items": objects})
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr
    assert answer.stdout.count("(server dry run)") == len(objects)


def test_a_field_that_does_not_exist_and_a_loose_pod_are_noticed(server: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose", "namespace": "ml"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    assert "violates PodSecurity" in _dry_run(server, pod).stderr
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "odd", "namespace": "ml"},
        "spec": {"ports": [{"port": 1, "protocol": "TCP"}], "nonsense": True},
    }
    assert "nonsense" in _dry_run(server, service).stderr


def _dry_run(server: Cluster, body: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [server.binaries.path("kubectl"), f"--kubeconfig={server.kubeconfig}", "apply",
         "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"],
        input=json.dumps(body), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
