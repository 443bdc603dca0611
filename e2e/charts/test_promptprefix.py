"""What the chart promptprefix renders: its objects, their names, and how they find each other."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml

from e2e.charts.installation import (
    CHART,
    EVERYTHING,
    NOTHING,
    TWO_TEAMS,
    VALUE_SETS,
    changed,
    container,
    objects,
    pods,
)
from e2e.charts.pod_security import containers_of, lapses, violations
from e2e.charts.render import CHARTS, NAMESPACE, Object, Values, named, notes, of_kind, run_helm

CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "PriorityClass",
}
ALWAYS = {
    "ClusterRole promptprefix-operator-promptprefix-system",
    "ClusterRoleBinding promptprefix-operator-promptprefix-system",
    "ConfigMap promptprefix-ca",
    "Deployment promptprefix-operator",
    "Pod promptprefix-install-check",
    "Role promptprefix-install-check",
    "Role promptprefix-operator",
    "Role promptprefix-operator-served",
    "RoleBinding promptprefix-install-check",
    "RoleBinding promptprefix-operator",
    "RoleBinding promptprefix-operator-served",
    "Secret promptprefix-operator-tls",
    "Service promptprefix-operator",
    "ServiceAccount promptprefix-install-check",
    "ServiceAccount promptprefix-operator",
}
"""Named here word for word: other parts find them by these names."""
SWITCHED = {
    "crds.enabled": {"CustomResourceDefinition promptprefixes.promptprefix.dev"},
    "webhook.enabled": {
        "MutatingWebhookConfiguration promptprefix-injector-promptprefix-system",
        "Service promptprefix-webhook",
    },
    "router.enabled": {
        "Deployment promptprefix-router",
        "PodDisruptionBudget promptprefix-router",
        "Service promptprefix-metrics",
        "Service promptprefix-router",
        "ServiceAccount promptprefix-router",
    },
    "networkPolicy.enabled": {"NetworkPolicy promptprefix-operator"},
    "operator.podDisruptionBudget.enabled": {"PodDisruptionBudget promptprefix-operator"},
    "priorityClass.create": {"PriorityClass promptprefix-promptprefix-system"},
    "metrics.serviceMonitor.enabled": {"ServiceMonitor promptprefix"},
    "metrics.podMonitor.enabled": {"PodMonitor promptprefix-sidecars"},
}
ROUTER_SWITCHED = {
    "networkPolicy.enabled": {"NetworkPolicy promptprefix-router"},
    "router.autoscaling.enabled": {"HorizontalPodAutoscaler promptprefix-router"},
}


def names(values: Values | None = None, **options: Any) -> set[str]:
    return {f"{each['kind']} {each['metadata']['name']}" for each in objects(values, **options)}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_lint_finds_nothing(values: Values, tmp_path: Any) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    said = run_helm("lint", "--strict", str(CHARTS / CHART), f"--values={file}")
    assert "0 chart(s) failed" in said


def test_without_its_parts_the_operator_remains() -> None:
    assert names(NOTHING) == ALWAYS


@pytest.mark.parametrize("switch", SWITCHED)
def test_a_switch_adds_what_it_says_and_nothing_else(switch: str) -> None:
    extra = SWITCHED[switch]
    if switch == "router.enabled":
        assert names(changed(NOTHING, switch, True)) == ALWAYS | extra
    else:
        assert names(changed(NOTHING, switch, True)) - ALWAYS == extra


@pytest.mark.parametrize("switch", ROUTER_SWITCHED)
def test_a_switch_of_the_router_does_so_too(switch: str) -> None:
    base = changed(NOTHING, "router.enabled", True)
    added = names(changed(base, switch, True)) - names(base)
    assert added - SWITCHED.get(switch, set()) == ROUTER_SWITCHED[switch]


def test_each_further_tenant_gets_a_router_of_its_own() -> None:
    values = changed(TWO_TEAMS, "router.additionalTenants", ["ml", "chat"])
    assert names(values) - names(TWO_TEAMS) == {
        "Deployment promptprefix-router-chat",
        "PodDisruptionBudget promptprefix-router-chat",
        "Service promptprefix-router-chat",
    }


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_object_stands_once_where_it_belongs(values: Values) -> None:
    served = values.get("namespaces", [NAMESPACE])
    places: Counter[tuple[str, str | None, str]] = Counter()
    for each in objects(values):
        metadata = each["metadata"]
        assert ("namespace" not in metadata) == (each["kind"] in CLUSTER_SCOPED), metadata["name"]
        assert metadata.get("namespace", NAMESPACE) in (NAMESPACE, *served)
        places[each["kind"], metadata.get("namespace"), metadata["name"]] += 1
    assert set(places.values()) == {1}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_object_has_the_common_labels(values: Values) -> None:
    for each in objects(changed(values, "commonLabels", {"team": "platform"})):
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "promptprefix"
        assert labels["app.kubernetes.io/instance"] == "promptprefix"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/version"] == "0.1.0"
        assert labels["helm.sh/chart"] == "promptprefix-0.2.0"
        assert labels["team"] == "platform"


def test_the_nearer_label_wins_and_the_charts_own_always() -> None:
    values = changed(EVERYTHING, "commonLabels", {"a": "common", "app.kubernetes.io/name": "x"})
    for path in ("operator.podLabels", "router.podLabels", "metrics.serviceMonitor.labels"):
        values = changed(values, path, {"a": "near", "app.kubernetes.io/instance": "x"})
    near = [pod_labels(each) for each in workloads(values).values()]
    near.append(named(objects(values), "ServiceMonitor", "promptprefix")["metadata"]["labels"])
    for labels in near:
        assert labels["a"] == "near"
        assert labels["app.kubernetes.io/name"] == "promptprefix"
        assert labels["app.kubernetes.io/instance"] == "promptprefix"
    assert named(objects(values), "Service", "promptprefix-router")["metadata"]["labels"]["a"] == (
        "common"
    )


OPENSHIFT: Values = {
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "webhook": {"sidecar": {"runAsUser": None}},
}


def test_nothing_names_a_user_where_the_cluster_chooses() -> None:
    text = json.dumps(list(pods(OPENSHIFT).values()))
    assert not re.search("65532|runAsUser|runAsGroup|fsGroup", text)
    for spec in pods(OPENSHIFT).values():
        assert violations(spec) == []


def test_users_annotations_stand_beside_the_charts() -> None:
    given = {"example.com/a": "b", "kubectl.kubernetes.io/default-container": "picker"}
    values = changed(EVERYTHING, "router.podAnnotations", given)
    for path in (
        *("operator.podAnnotations", "operator.serviceAccount.annotations"),
        *("router.serviceAccount.annotations", "router.service.annotations"),
    ):
        values = changed(values, path, given)
    found = [
        *(each["spec"]["template"]["metadata"] for each in workloads(values).values()),
        named(objects(values), "ServiceAccount", "promptprefix-operator")["metadata"],
        named(objects(values), "ServiceAccount", "promptprefix-router")["metadata"],
        named(objects(values), "Service", "promptprefix-router")["metadata"],
    ]
    for metadata in found:
        assert given.items() <= metadata["annotations"].items()


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_pod_meets_the_restricted_standard(values: Values) -> None:
    for name, spec in pods(values).items():
        assert violations(spec) == [], name
        assert lapses(spec) == [], name


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_mount_has_a_volume_and_every_volume_a_mount(values: Values) -> None:
    for spec in pods(values).values():
        mounts = [
            mount["name"]
            for _, each in containers_of(spec)
            for mount in each.get("volumeMounts", ())
        ]
        assert set(mounts) == {volume["name"] for volume in spec["volumes"]}


def test_only_who_talks_to_the_api_server_has_a_token_of_it() -> None:
    found = {name: spec["automountServiceAccountToken"] for name, spec in pods(EVERYTHING).items()}
    assert found == {
        "promptprefix-operator": True,
        "promptprefix-install-check": True,
        "promptprefix-router": False,
        "promptprefix-router-chat": False,
    }


def test_no_pod_gets_the_variables_of_services() -> None:
    """PROMPTPREFIX_WEBHOOK_PORT of the Service promptprefix-webhook would be read as a setting."""
    assert {spec["enableServiceLinks"] for spec in pods(EVERYTHING).values()} == {False}


def workloads(values: Values) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in of_kind(objects(values), "Deployment")}


def pod_labels(deployment: Object) -> dict[str, str]:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])


def chosen(selector: dict[str, str], deployments: dict[str, Object]) -> set[str]:
    return {
        name for name, each in deployments.items() if selector.items() <= pod_labels(each).items()
    }


def test_selectors_find_their_pods_and_no_others() -> None:
    rendered = objects(EVERYTHING)
    deployments = workloads(EVERYTHING)
    routers = {"promptprefix-router", "promptprefix-router-chat"}
    for name, each in deployments.items():
        assert chosen(each["spec"]["selector"]["matchLabels"], deployments) == {name}
        (spread,) = each["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == each["spec"]["selector"]["matchLabels"]
        budget = named(rendered, "PodDisruptionBudget", name)
        assert budget["spec"]["selector"] == each["spec"]["selector"]
    for name, expected in {
        "promptprefix-operator": {"promptprefix-operator"},
        "promptprefix-webhook": {"promptprefix-operator"},
        "promptprefix-router": {"promptprefix-router"},
        "promptprefix-router-chat": {"promptprefix-router-chat"},
        "promptprefix-metrics": routers,
    }.items():
        assert chosen(named(rendered, "Service", name)["spec"]["selector"], deployments) == expected
    for name, expected in {
        "promptprefix-operator": {"promptprefix-operator"},
        "promptprefix-router": routers,
    }.items():
        policy = named(rendered, "NetworkPolicy", name)["spec"]
        assert chosen(policy["podSelector"]["matchLabels"], deployments) == expected
    for each in of_kind(rendered, "HorizontalPodAutoscaler"):
        assert each["spec"]["scaleTargetRef"]["name"] == each["metadata"]["name"]
        assert "replicas" not in deployments[each["metadata"]["name"]]["spec"]


def test_selectors_never_move() -> None:
    """A Deployment's selector can't be changed, so no value and no version may enter it."""
    values = changed(EVERYTHING, "commonLabels", {"team": "platform"})
    values = changed(values, "operator.podLabels", {"a": "b"})
    values = changed(values, "router.podLabels", {"a": "b"})
    values = changed(values, "router.tenant", "chat")
    for name, each in workloads(values).items():
        selector = each["spec"]["selector"]["matchLabels"]
        component = name.removeprefix("promptprefix-").partition("-")[0]
        assert selector == {
            "app.kubernetes.io/name": "promptprefix",
            "app.kubernetes.io/instance": "promptprefix",
            "app.kubernetes.io/component": component,
            **({"promptprefix.dev/router": name} if component == "router" else {}),
        }


def test_services_lead_to_ports_that_exist() -> None:
    rendered = objects(EVERYTHING)
    deployments = workloads(EVERYTHING)
    for service in of_kind(rendered, "Service"):
        for name in chosen(service["spec"]["selector"], deployments):
            spec = pods(EVERYTHING)[name]
            ports = {
                port["name"] for _, each in containers_of(spec) for port in each.get("ports", ())
            }
            wanted = {port["targetPort"] for port in service["spec"]["ports"]}
            assert wanted <= ports, service["metadata"]["name"]


def test_monitors_name_ports_of_services() -> None:
    rendered = objects(EVERYTHING)
    monitor = named(rendered, "ServiceMonitor", "promptprefix")["spec"]
    scraped = {
        port["name"]
        for service in of_kind(rendered, "Service")
        if monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        for port in service["spec"]["ports"]
    }
    endpoints = {each["port"] for each in monitor["endpoints"]}
    assert endpoints == {"metrics", "picker", "envoy"}
    assert endpoints <= scraped
    sidecars = named(rendered, "PodMonitor", "promptprefix-sidecars")["spec"]
    assert sidecars["namespaceSelector"] == {"matchNames": ["ml", "chat"]}


OURS = "ghcr.io/promptprefix/promptprefix-operator"
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, f"{OURS}:0.1.0"),
        ({"registry": "mirror:5000/k8s"}, "mirror:5000/k8s/promptprefix-operator:0.1.0"),
        ({"registry": ""}, "promptprefix-operator:0.1.0"),
        ({"registry": "localhost", "repository": "a/b", "tag": "c"}, "localhost/a/b:c"),
        ({"tag": "x", "digest": DIGEST}, f"{OURS}@{DIGEST}"),
    ],
)
def test_images(image: dict[str, str], expected: str) -> None:
    spec = pods({"operator": {"image": image}})["promptprefix-operator"]
    assert container(spec, "operator")["image"] == expected


def test_a_higher_priority_of_ones_own_wins() -> None:
    values = changed(EVERYTHING, "operator.priorityClassName", "system-cluster-critical")
    found = {name: spec["priorityClassName"] for name, spec in pods(values).items()}
    assert found["promptprefix-operator"] == "system-cluster-critical"
    assert found["promptprefix-router"] == "promptprefix-promptprefix-system"


@pytest.mark.parametrize(("version", "drains"), [("1.29.0", False), ("1.30.0", True)])
def test_a_router_drains_where_kubernetes_can_wait(version: str, drains: bool) -> None:
    spec = pods(kube_version=version)["promptprefix-router"]
    assert spec["terminationGracePeriodSeconds"] == 40
    drain = ["python3", "-m", "promptprefix_router", "drain", "--seconds", "30"]
    for name, hook in (
        ("picker", {"exec": {"command": drain}}),
        ("envoy", {"sleep": {"seconds": 30}}),
    ):
        assert container(spec, name).get("lifecycle") == ({"preStop": hook} if drains else None)


def test_older_clusters_are_refused() -> None:
    with pytest.raises(Exception, match=r"incompatible with Kubernetes v1\.28"):
        objects(kube_version="1.28.0")


def test_names_that_look_like_numbers_stay_texts() -> None:
    values = changed(changed(EVERYTHING, "namespaces", ["123", "456"]), "contentSecrets", {})
    values = changed(values, "limits", {"123": {"budgetShare": 0.5}})
    values = changed(values, "router.additionalTenants", ["456"])
    for each in objects(values, namespace="789", release="012"):
        metadata = each["metadata"]
        texts = [metadata.get("namespace", ""), *metadata["labels"].values()]
        assert all(isinstance(text, str) for text in texts), each["kind"]
    for spec in pods(values, namespace="789", release="012").values():
        for _, each in containers_of(spec):
            assert all(isinstance(item.get("value", ""), str) for item in each.get("env", ()))


@pytest.mark.parametrize(
    ("values", "present", "absent"),
    [
        (
            {},
            ["helm test", "promptprefix.dev/inject", "http://promptprefix-router.", "crds.keep"],
            [],
        ),
        (NOTHING, ["warm-vllm", "kubectl delete promptprefixes"], ["http://", "crds.keep"]),
        (
            changed(TWO_TEAMS, "router.additionalTenants", ["chat"]),
            ["ml: http://promptprefix-router.", "chat: http://promptprefix-router-chat."],
            [],
        ),
        ({"router": {"service": {"port": 8000}}}, [".svc:8000/v1/chat/completions"], []),
    ],
)
def test_the_notes_fit_the_values(values: Values, present: list[str], absent: list[str]) -> None:
    text = notes(CHART, values)
    assert [word for word in present if word not in text] == []
    assert [word for word in absent if word in text] == []
