"""What users add to the maps of the chart warm-vllm, and where its pods find the operator."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from e2e.charts.pod_security import violations
from e2e.charts.render import Object, Values, of_kind, pod_spec_of
from e2e.charts.warm_vllm import deployment, environment, objects, pod

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
OPENSHIFT: Values = {
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "warming": {"sidecar": {"runAsUser": None}},
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {DEFAULT_CONTAINER: "vllm"}),
        ({"example.com/a": "b"}, {DEFAULT_CONTAINER: "vllm", "example.com/a": "b"}),
        ({DEFAULT_CONTAINER: "reader"}, {DEFAULT_CONTAINER: "reader"}),
    ],
)
def test_annotations_of_the_user_beat_the_charts_own(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    template = deployment({"podAnnotations": given})["spec"]["template"]
    assert template["metadata"]["annotations"] == expected


def test_the_nearer_label_wins() -> None:
    labels = {"team": "near", "release": "prometheus"}
    values = {"commonLabels": {"team": "common"}, "podMonitor": {"enabled": True, "labels": labels}}
    (monitor,) = of_kind(objects(values), "PodMonitor")
    (service,) = of_kind(objects(values), "Service")
    assert labels.items() <= monitor["metadata"]["labels"].items()
    assert (
        service["metadata"]["labels"].items()
        <= {
            **monitor["metadata"]["labels"],
            "team": "common",
        }.items()
    )


def test_a_constraint_keeps_its_own_selector() -> None:
    own = {
        "maxSkew": 2,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "all-engines"}},
    }
    assert pod({"topologySpreadConstraints": [own]})["topologySpreadConstraints"] == [own]


def test_nothing_names_a_user_where_the_cluster_chooses() -> None:
    specs = [spec for each in objects(OPENSHIFT) if (spec := pod_spec_of(each))]
    assert len(specs) == 2  # the engine's and that of helm test
    for spec in specs:
        assert not re.search('65532|runAsUser|runAsGroup|fsGroup"', json.dumps(spec))
        assert violations(spec) == []


def places(values: Values) -> dict[str, Any]:
    """Return where the pods dial the operator, and the peers that the policy has for it."""
    (sidecar,) = (
        each for each in pod(values)["initContainers"] if each["name"] == "promptprefix-sidecar"
    )
    (policy,) = of_kind(objects(values), "NetworkPolicy")
    operator = policy["spec"]["egress"][1]
    return {
        "url": environment(sidecar)["PROMPTPREFIX_CONTROL_URL"],
        "port": operator["ports"][0]["port"],
        "operator": operator["to"],
        "clients": policy["spec"]["ingress"][0].get("from", [])[1:],
    }


def of_namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


@pytest.mark.parametrize("namespace", ["promptprefix-system", "serving"])
def test_one_value_says_where_the_operator_is(namespace: str) -> None:
    assert places({"operatorNamespace": namespace}) == {
        "url": f"https://promptprefix-operator.{namespace}.svc:8443",
        "port": 8443,
        "operator": [of_namespace(namespace)],
        "clients": [{"podSelector": {}}, of_namespace(namespace)],
    }


def test_an_operator_elsewhere_is_named_in_full() -> None:
    peers = [{"ipBlock": {"cidr": "10.0.0.0/24"}}]
    values = {
        "warming": {"sidecar": {"controlUrl": "https://operator.example"}},
        "networkPolicy": {"operator": peers, "clients": []},
    }
    assert places(values) == {
        "url": "https://operator.example",
        "port": 443,
        "operator": peers,
        "clients": [],
    }
