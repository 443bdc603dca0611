"""The chart's gateway mode: pickers without an Envoy, each beside its InferencePool."""

from __future__ import annotations

import pytest

from e2e.charts.installation import (
    EVERYTHING,
    GATEWAY,
    changed,
    container,
    environment,
    objects,
    pods,
)
from e2e.charts.render import NAMESPACE, Object, named, of_kind
from promptprefix_router.settings import RouterSettings

NAMES = {"promptprefix-router": "ml", "promptprefix-router-chat": "chat"}


def test_everything_of_a_picker_stands_beside_its_pool() -> None:
    for name, tenant in NAMES.items():
        for kind in ("Deployment", "Service", "PodDisruptionBudget"):
            assert named(objects(GATEWAY), kind, name)["metadata"]["namespace"] == tenant
    for kind, name in (
        ("ServiceAccount", "promptprefix-router"),
        ("NetworkPolicy", "promptprefix-router"),
        ("Service", "promptprefix-metrics"),
        ("InferencePool", "promptprefix"),
    ):
        places = {
            each["metadata"]["namespace"]
            for each in of_kind(objects(GATEWAY), kind)
            if each["metadata"]["name"] == name
        }
        assert places == set(NAMES.values()), (kind, name)
    monitor = named(objects(GATEWAY), "ServiceMonitor", "promptprefix")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": [NAMESPACE, "ml", "chat"]}
    assert {each["port"] for each in monitor["endpoints"]} == {"metrics", "picker"}


def test_the_pool_leads_to_the_pickers_port() -> None:
    rendered = objects(GATEWAY)
    for name, tenant in NAMES.items():
        spec = named(rendered, "InferencePool", "promptprefix", tenant)["spec"]
        assert spec["selector"] == {"matchLabels": {"app": "vllm"}}
        assert spec["targetPorts"] == [{"number": 8000}]
        reference = spec["endpointPickerRef"]
        assert reference == {"name": name, "port": {"number": 9002}, "failureMode": "FailOpen"}
        (port,) = named(rendered, "Service", reference["name"], tenant)["spec"]["ports"]
        assert port["port"] == reference["port"]["number"]
        ports = {each["name"]: each["containerPort"] for each in picker(name)["ports"]}
        assert ports[port["targetPort"]] == RouterSettings.model_fields["gateway_port"].default
        policy = named(rendered, "NetworkPolicy", "promptprefix-router", tenant)["spec"]
        entrances = {each["port"] for rule in policy["ingress"] for each in rule["ports"]}
        assert entrances == ports.keys()


def picker(name: str) -> Object:
    return container(pods(GATEWAY)[name], "picker")


def test_there_is_no_envoy() -> None:
    for name in NAMES:
        spec = pods(GATEWAY)[name]
        assert [each["name"] for each in spec["containers"]] == ["picker"]
        assert "initContainers" not in spec
        assert "envoy" not in {volume["name"] for volume in spec["volumes"]}


def test_the_picker_is_told_of_its_door(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tenant in NAMES.items():
        for key, value in environment(picker(name)).items():
            monkeypatch.setenv(key, value)
        settings = RouterSettings()
        assert (settings.door, settings.tenant) == ("gateway", tenant)
        assert settings.gateway_tls == "files"
        mounted = {each["mountPath"]: each["name"] for each in picker(name)["volumeMounts"]}
        volume = mounted[str(settings.gateway_tls_dir)]
        (source,) = (each for each in pods(GATEWAY)[name]["volumes"] if each["name"] == volume)
        assert source["secret"] == {"secretName": "picker-tls"}
        # The kubelet waits longer than the picker may take to stop.
        spec = pods(GATEWAY)[name]
        assert spec["terminationGracePeriodSeconds"] > settings.gateway_drain_s


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("workers", 3, "workers"),
        ("undeclaredMode", "least-load", "undeclared_mode"),
        ("preciseMaxBlocks", 7, "precise_max_blocks"),
        ("preciseTimeoutMs", 7, "precise_timeout_ms"),
        ("historyChunks", 7, "history_chunks"),
        ("tokensPerActiveRequest", 7, "tokens_per_active_request"),
        ("loadFactor", 1.5, "load_factor"),
        ("loadSlack", 7, "load_slack"),
        ("engineIntervalMs", 0, "engine_interval_ms"),
        ("maxTextBytes", 0, "max_text_bytes"),
        ("tenantHeader", "x-tenant", "tenant_header"),
        ("shedding.saturatedAt", 7, "saturated_at"),
        ("shedding.objectives", ["a", "b"], "sheddable_objectives"),
        ("shedding.header", "x-objective", "objective_header"),
    ],
)
def test_what_decides_is_set_as_in_the_other_mode(
    path: str, value: object, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pods(changed(GATEWAY, f"router.{path}", value))["promptprefix-router"]
    for key, given in environment(container(spec, "picker")).items():
        monkeypatch.setenv(key, given)
    given = ",".join(value) if isinstance(value, list) else value
    assert getattr(RouterSettings(), field) == given


def test_a_certificate_of_its_own_needs_no_secret() -> None:
    values = changed(
        changed(GATEWAY, "router.gateway.tls", "self-signed"), "router.gateway.tlsSecret", ""
    )
    spec = pods(values)["promptprefix-router"]
    assert "gateway-tls" not in {volume["name"] for volume in spec["volumes"]}
    assert environment(container(spec, "picker"))["PROMPTPREFIX_GATEWAY_TLS"] == "self-signed"


def test_the_operator_knows_each_tenants_picker() -> None:
    given = environment(container(pods(GATEWAY)["promptprefix-operator"], "operator"))
    accounts = given["PROMPTPREFIX_ROUTER_SERVICE_ACCOUNTS"]
    assert accounts == "ml/promptprefix-router,chat/promptprefix-router"


def test_pickers_reach_the_operator_and_their_engines() -> None:
    rendered = objects(GATEWAY)
    labels = named(rendered, "Deployment", "promptprefix-operator")["spec"]["selector"]
    control = {
        "ports": [{"port": 8443, "protocol": "TCP"}],
        "to": [
            {
                "podSelector": labels,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            }
        ],
    }
    for tenant in NAMES.values():
        policy = named(rendered, "NetworkPolicy", "promptprefix-router", tenant)["spec"]
        assert policy["egress"][0] == control
        engines, dns = policy["egress"][1:]
        assert engines == {"to": [{"podSelector": {}}]}, "for their metrics, in this namespace"
        assert {each["port"] for each in dns["ports"]} == {53}
    entrance = named(rendered, "NetworkPolicy", "promptprefix-operator")["spec"]["ingress"][0]
    (served,) = entrance["from"]
    assert set(served["namespaceSelector"]["matchExpressions"][0]["values"]) == {"ml", "chat"}


def test_a_pool_of_ones_own_replaces_ours() -> None:
    values = changed(GATEWAY, "router.gateway.inferencePool.create", False)
    assert of_kind(objects(values), "InferencePool") == []


def test_standalone_has_no_pool() -> None:
    values = changed(EVERYTHING, "router.gateway.inferencePool.selector", {"app": "vllm"})
    assert objects(values) == objects(EVERYTHING)
