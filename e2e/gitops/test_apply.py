"""The example repository and the chart's own objects on a real API server, applied by GitOps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.charts.render import NAMESPACE, named, render
from e2e.cluster import Cluster
from e2e.tools.gitops import GitOpsStatus

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "gitops" / "argocd" / "health.lua"
PREFIX = ("get", "-n", "ml", "promptprefix", "support-triage", "-o", "json")


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane that knows the resource; nothing here needs a node."""
    with Cluster.start(progress=print, node=False) as started:
        started.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for namespace in ("ml", NAMESPACE):
            started.kubectl("create", "namespace", namespace)
        yield started


def test_a_prompt_is_applied_and_edited(
    server: Cluster, tools: GitOpsStatus, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "examples" / "gitops", repository)
    production = str(repository / "prompts" / "overlays" / "production")
    server.kubectl("apply", "--server-side", "-k", production)
    fresh: dict[str, Any] = json.loads(server.kubectl(*PREFIX))
    assert fresh["status"]["observedGeneration"] == 0
    assert "annotations" not in fresh["metadata"], "no copy of the text"
    assert [each.status for each in tools.kstatus([fresh])] == ["InProgress"]
    assert [each.status for each in tools.argo([fresh], SCRIPT)] == ["Progressing"]

    prompt = repository / "prompts" / "base" / "support-triage" / "system.md"
    prompt.write_text(prompt.read_text() + "6. Be brief.\n")
    server.kubectl("apply", "--server-side", "-k", production)
    edited: dict[str, Any] = json.loads(server.kubectl(*PREFIX))
    assert edited["metadata"]["generation"] == fresh["metadata"]["generation"] + 1
    names = [each["spec"]["content"]["configMapRef"]["name"] for each in (fresh, edited)]
    assert names[0] != names[1]
    server.kubectl("get", "-n", "ml", "configmap", *names)


FILLED: dict[tuple[str, str], dict[str, Any]] = {
    ("Secret", "promptprefix-operator-tls"): {"data": {"tls.crt": "QQ=="}},
    ("ConfigMap", "promptprefix-ca"): {"data": {"ca.crt": "A"}},
    ("MutatingWebhookConfiguration", f"promptprefix-injector-{NAMESPACE}"): {
        "webhooks": [{"name": "inject.promptprefix.dev", "clientConfig": {"caBundle": "QQ=="}}]
    },
}


@pytest.mark.parametrize(
    "how", [(), ("--server-side", "--field-manager=argocd-controller", "--force-conflicts")]
)
@pytest.mark.parametrize("what", FILLED)
def test_a_sync_leaves_alone_what_the_operator_filled_in(
    server: Cluster, what: tuple[str, str], how: tuple[str, ...]
) -> None:
    rendered = named(render("promptprefix"), *what)
    manifest, filled = json.dumps(rendered), FILLED[what]
    place = (what[0].lower(), what[1], "-n", NAMESPACE)
    server.kubectl("apply", *how, "-f", "-", input=manifest)
    patch = ("--type=strategic", "--field-manager=promptprefix-operator", "-p", json.dumps(filled))
    server.kubectl("patch", *place, *patch)
    rendered["metadata"]["labels"]["synced"] = "again"
    server.kubectl("apply", *how, "-f", "-", input=json.dumps(rendered))
    found: dict[str, Any] = json.loads(server.kubectl("get", *place, "-o", "json"))
    assert found["metadata"]["labels"]["synced"] == "again"
    if what[0] == "MutatingWebhookConfiguration":
        assert found["webhooks"][0]["clientConfig"]["caBundle"] == "QQ=="
    else:
        [(field, values)] = filled.items()
        assert found[field] == values
    server.kubectl("delete", *place)
