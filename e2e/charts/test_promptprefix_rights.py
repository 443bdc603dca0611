"""Who may do what: rights at the API server, and ports in the network. Both exactly, no more."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.charts.installation import (
    CERT_MANAGER,
    EVERYTHING,
    NOTHING,
    TWO_TEAMS,
    changed,
    container,
    environment,
    objects,
    pods,
)
from e2e.charts.render import NAMESPACE, Object, Values, named, of_kind

OWN_CA = changed(TWO_TEAMS, "webhook.certificate.source", "operator")

TOKEN_REVIEWS = ("authentication.k8s.io", "tokenreviews", "", "create")
CA_BUNDLE = (
    "admissionregistration.k8s.io",
    "mutatingwebhookconfigurations",
    f"promptprefix-injector-{NAMESPACE}",
    "get patch",
)
OWN = {
    ("", "secrets", "promptprefix-operator-tls", "get update"),
    ("coordination.k8s.io", "leases", "promptprefix-operator", "get update"),
    ("coordination.k8s.io", "leases", "", "create"),
    ("", "configmaps", "promptprefix-ca", "get patch"),
}
POOLS = ("inference.networking.k8s.io", "inferencepools", "", "list watch")
SERVED = {
    ("promptprefix.dev", "promptprefixes", "", "list watch"),
    ("promptprefix.dev", "promptprefixes/status", "", "patch"),
    ("", "pods", "", "list watch"),
    ("", "configmaps", "", "list watch"),
    POOLS,
    ("", "configmaps", "promptprefix-ca", "get patch"),
    ("", "events", "", "create"),
}
CHECK = {
    ("promptprefix.dev", "promptprefixes", "", "create"),
    ("promptprefix.dev", "promptprefixes", "promptprefix-install-check", "delete get"),
}

Right = tuple[str, str, str, str]


def rights(account: str, values: Values, **options: Any) -> dict[str, set[Right]]:
    """Return what a ServiceAccount of the release may do: by namespace, "" is the cluster."""
    rendered = objects(values, **options)
    found: dict[str, set[Right]] = {}
    for binding in [*of_kind(rendered, "ClusterRoleBinding"), *of_kind(rendered, "RoleBinding")]:
        (subject,) = binding["subjects"]
        if (subject["name"], subject["namespace"]) != (account, NAMESPACE):
            continue
        place = binding["metadata"].get("namespace", "")
        role = named(
            rendered, binding["roleRef"]["kind"], binding["roleRef"]["name"], place or None
        )
        found.setdefault(place, set()).update(_rights_of(role))
    return found


def _rights_of(role: Object) -> set[Right]:
    return {
        (group, resource, name, " ".join(sorted(rule["verbs"])))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


@pytest.mark.parametrize(
    ("values", "api_versions", "cluster"),
    [
        (OWN_CA, (), {TOKEN_REVIEWS, CA_BUNDLE}),
        (TWO_TEAMS, (), {TOKEN_REVIEWS, CA_BUNDLE}),
        (TWO_TEAMS, [CERT_MANAGER], {TOKEN_REVIEWS}),
        (changed(TWO_TEAMS, "webhook.certificate.source", "certManager"), (), {TOKEN_REVIEWS}),
        (changed(OWN_CA, "webhook.enabled", False), (), {TOKEN_REVIEWS}),
    ],
)
def test_rights_of_the_operator(values: Values, api_versions: Any, cluster: set[Right]) -> None:
    assert rights("promptprefix-operator", values, api_versions=api_versions) == {
        "": cluster,
        NAMESPACE: OWN,
        "ml": SERVED,
        "chat": SERVED,
    }


def test_by_default_it_serves_its_own_namespace() -> None:
    assert rights("promptprefix-operator", {})[NAMESPACE] == OWN | SERVED


def test_it_reads_the_named_secrets_and_only_by_name() -> None:
    found = rights("promptprefix-operator", EVERYTHING)
    assert found["ml"] - SERVED == {
        ("", "secrets", "prompts", "get"),
        ("", "secrets", "more-prompts", "get"),
    }
    assert found["chat"] == SERVED


def test_inference_pools_can_be_left_alone() -> None:
    found = rights("promptprefix-operator", changed(EVERYTHING, "inferencePools", False))
    assert found["chat"] == SERVED - {POOLS}


def test_rights_of_the_check() -> None:
    assert rights("promptprefix-install-check", EVERYTHING) == {"ml": CHECK}
    values = changed(EVERYTHING, "test.namespace", "chat")
    assert rights("promptprefix-install-check", values) == {"chat": CHECK}


def test_the_router_has_no_right_and_is_known_to_the_operator() -> None:
    assert rights("promptprefix-router", EVERYTHING) == {}
    values = changed(EVERYTHING, "operator.routerServiceAccounts", ["edge/gateway"])
    assert known_routers(values) == [f"{NAMESPACE}/promptprefix-router", "edge/gateway"]
    assert known_routers(NOTHING) == [""]


def known_routers(values: Values) -> list[str]:
    spec = container(pods(values)["promptprefix-operator"], "operator")
    return str(environment(spec)["PROMPTPREFIX_ROUTER_SERVICE_ACCOUNTS"]).split(",")


def test_every_role_is_bound_and_every_account_used() -> None:
    rendered = objects(EVERYTHING)
    for kind in ("Role", "ClusterRole"):
        roles = {
            (each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in of_kind(rendered, kind)
        }
        bound = {
            (each["metadata"].get("namespace"), each["roleRef"]["name"])
            for each in of_kind(rendered, f"{kind}Binding")
        }
        assert roles == bound
    used = {spec["serviceAccountName"] for spec in pods(EVERYTHING).values()}
    assert used == {each["metadata"]["name"] for each in of_kind(rendered, "ServiceAccount")}


def test_the_check_leaves_nothing_when_it_succeeds() -> None:
    marked = [each for each in objects() if "install-check" in each["metadata"]["name"]]
    weights = {}
    for each in marked:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        policy = annotations["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"
        weights[each["kind"]] = int(annotations["helm.sh/hook-weight"])
    assert max(weights, key=lambda kind: weights[kind]) == "Pod"
    assert len(set(weights.values())) == 2


def policy(name: str, values: Values = EVERYTHING) -> Object:
    return dict(named(objects(values), "NetworkPolicy", name)["spec"])


def ingress(spec: Object) -> dict[str, list[Object] | None]:
    """Return who may enter by which port; None is everybody."""
    return {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}


def served(*namespaces: str) -> Object:
    expression = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": list(namespaces),
    }
    return {"namespaceSelector": {"matchExpressions": [expression]}}


def of_component(component: str) -> Object:
    labels = {
        "app.kubernetes.io/name": "promptprefix",
        "app.kubernetes.io/instance": "promptprefix",
        "app.kubernetes.io/component": component,
    }
    return {"podSelector": {"matchLabels": labels}}


def test_who_may_enter_the_operator() -> None:
    spec = policy("promptprefix-operator")
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert ingress(spec) == {
        "control": [served("ml", "chat"), of_component("router")],
        "webhook": None,
        "metrics": None,
    }


def test_who_may_enter_the_router() -> None:
    spec = policy("promptprefix-router")
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert ingress(spec) == {"http": None, "metrics": None, "stats": None}


def test_clients_and_scrapers_can_be_named() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}
    values = changed(EVERYTHING, "networkPolicy.routerClients", [peer])
    assert ingress(policy("promptprefix-router", values))["http"] == [peer]
    values = changed(EVERYTHING, "networkPolicy.metricsClients", [peer])
    assert ingress(policy("promptprefix-router", values))["stats"] == [peer]
    assert ingress(policy("promptprefix-operator", values))["metrics"] == [peer]


def test_a_foreign_router_may_enter_too() -> None:
    values = changed(EVERYTHING, "operator.routerServiceAccounts", ["edge/gateway"])
    entrance = ingress(policy("promptprefix-operator", values))["control"]
    assert entrance is not None
    assert entrance[-1] == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}
    }


DNS = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]


def test_where_they_may_go() -> None:
    operator = policy("promptprefix-operator")["egress"]
    assert operator == [
        {"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443, 8443, 16443)]},
        {"ports": DNS},
    ]
    router = policy("promptprefix-router", changed(EVERYTHING, "router.additionalTenants", []))
    assert router["egress"] == [
        {"ports": [{"port": 8443, "protocol": "TCP"}], "to": [of_component("operator")]},
        {"to": [served("ml")]},
        {"ports": DNS},
    ]


def test_the_ports_of_the_policies_exist() -> None:
    for name, owner in (
        ("promptprefix-operator", "promptprefix-operator"),
        ("promptprefix-router", "promptprefix-router-chat"),
    ):
        ports = {
            port["name"] for each in pods(EVERYTHING)[owner]["containers"] for port in each["ports"]
        }
        assert ingress(policy(name)).keys() == ports
