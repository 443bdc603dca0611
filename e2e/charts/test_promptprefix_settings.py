"""Each variable that the chart sets is a setting, and its defaults are the settings' own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings

from e2e.charts.installation import (
    EVERYTHING,
    NOTHING,
    TWO_TEAMS,
    changed,
    container,
    environment,
    pods,
)
from e2e.charts.pod_security import containers_of
from e2e.charts.render import NAMESPACE, Object, Values
from promptprefix.fleet import Limits
from promptprefix.wire import AUDIENCE
from promptprefix_operator.install_check import CheckSettings
from promptprefix_operator.settings import Settings
from promptprefix_router.settings import RouterSettings

PREFIX = "PROMPTPREFIX_"
CONTROL_URL = f"https://promptprefix-operator.{NAMESPACE}.svc:8443"

OWN: Mapping[type[BaseSettings], set[str]] = {
    Settings: {
        "own_namespace",
        "namespaces",
        "identity",
        "router_service_accounts",
        "webhook_configuration",
        "sidecar_image",
        "plugin_image",
        "control_url",
    },
    RouterSettings: {"tenant", "control_url"},
    CheckSettings: {"namespace", "name", "model", "selector"},
}
"""Settings that an installation decides; all others have the default that the chart has."""

PODS: list[tuple[str, str, type[BaseSettings], str]] = [
    ("promptprefix-operator", "operator", Settings, PREFIX),
    ("promptprefix-router", "envoy-config", RouterSettings, PREFIX),
    ("promptprefix-router", "picker", RouterSettings, PREFIX),
    ("promptprefix-install-check", "install-check", CheckSettings, f"{PREFIX}TEST_"),
]


def variables(pod: str, name: str, values: Values | None = None) -> dict[str, str]:
    """Return a container's variables; what the kubelet fills in has its path as value."""
    found = environment(container(pods(values)[pod], name))
    return {
        key: value if isinstance(value, str) else value["fieldRef"]["fieldPath"]
        for key, value in found.items()
    }


def read(model: type[BaseSettings], given: dict[str, str], patch: pytest.MonkeyPatch) -> Any:
    for name, value in given.items():
        patch.setenv(name, value)
    return model()


@pytest.mark.parametrize("values", [EVERYTHING, TWO_TEAMS])
@pytest.mark.parametrize(("pod", "name", "model", "prefix"), PODS)
def test_every_variable_is_a_setting(
    pod: str,
    name: str,
    model: type[BaseSettings],
    prefix: str,
    values: Values,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = variables(pod, name, values)
    assert {each.removeprefix(prefix).lower() for each in given} <= model.model_fields.keys()
    assert all(each.startswith(prefix) for each in given)
    read(model, given, monkeypatch)


@pytest.mark.parametrize(("pod", "name", "model", "prefix"), PODS)
def test_defaults_are_the_settings_own(
    pod: str,
    name: str,
    model: type[BaseSettings],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = read(model, variables(pod, name), monkeypatch)
    for field, described in model.model_fields.items():
        if field not in OWN[model]:
            default = described.get_default(call_default_factory=True)
            assert getattr(given, field) == default, field


def test_the_operator_is_told_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    given = variables("promptprefix-operator", "operator", TWO_TEAMS)
    assert given["PROMPTPREFIX_OWN_NAMESPACE"] == "metadata.namespace"
    assert given["PROMPTPREFIX_IDENTITY"] == "metadata.name"
    settings = read(Settings, given, monkeypatch)
    assert settings.namespaces == ("ml", "chat")
    assert settings.webhook_configuration == f"promptprefix-injector-{NAMESPACE}"
    assert settings.control_url == CONTROL_URL
    assert settings.sidecar_image == "ghcr.io/promptprefix/promptprefix-sidecar:0.1.0"
    assert settings.plugin_image == "ghcr.io/promptprefix/promptprefix-plugin:0.1.0"


def test_namespaces_are_limited_as_the_values_say(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"*": {"maxPriority": 100}, "ml": {"budgetShare": 0.25, "maxPriority": -5}}
    given = variables("promptprefix-operator", "operator", {**TWO_TEAMS, "limits": limits})
    found = read(Settings, given, monkeypatch).namespace_limits
    assert found == {"ml": Limits(0.25, -5), "chat": Limits(1.0, 100)}


@pytest.mark.parametrize(
    ("value", "user"), [(None, None), (65533, 65533), (1_000_680_000, 1_000_680_000)]
)
def test_injected_containers_run_as_the_values_say(
    value: int | None, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = {"runAsUser": value, "readyTimeoutSeconds": 900, "warmChunkTokens": 512}
    given = variables("promptprefix-operator", "operator", {"webhook": {"sidecar": sidecar}})
    injection = read(Settings, given, monkeypatch).injection
    assert (injection.run_as_user, injection.ready_timeout_s) == (user, 900)
    assert injection.warm_chunk_tokens == 512


def test_without_the_webhook_the_operator_opens_no_port_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = variables("promptprefix-operator", "operator", NOTHING)
    assert read(Settings, given, monkeypatch).webhook_configuration == ""
    ports = container(pods(NOTHING)["promptprefix-operator"], "operator")["ports"]
    assert "webhook" not in {port["name"] for port in ports}


@pytest.mark.parametrize(
    ("name", "tenant"), [("promptprefix-router", "ml"), ("promptprefix-router-chat", "chat")]
)
def test_each_router_serves_its_tenant(
    name: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = variables(name, "picker", EVERYTHING)
    assert picker == variables(name, "envoy-config", EVERYTHING)
    settings = read(RouterSettings, picker, monkeypatch)
    assert (settings.tenant, settings.control_url) == (tenant, CONTROL_URL)


def test_the_check_gets_the_values_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    given = variables("promptprefix-install-check", "install-check", EVERYTHING)
    settings = read(CheckSettings, given, monkeypatch)
    assert (settings.namespace, settings.model) == ("ml", "m")
    assert settings.resource()["spec"]["pods"] == {"selector": {"matchLabels": {"app": "vllm"}}}


def default_of(model: type[BaseSettings], field: str) -> Any:
    return model.model_fields[field].get_default(call_default_factory=True)


@pytest.mark.parametrize(
    ("pod", "port", "model", "field"),
    [
        ("promptprefix-operator", "control", Settings, "listen_port"),
        ("promptprefix-operator", "metrics", Settings, "metrics_port"),
        ("promptprefix-operator", "webhook", Settings, "webhook_port"),
        ("promptprefix-router", "http", RouterSettings, "listen_port"),
        ("promptprefix-router", "stats", RouterSettings, "stats_port"),
        ("promptprefix-router", "metrics", RouterSettings, "metrics_port"),
    ],
)
def test_ports_are_those_that_are_listened_on(
    pod: str, port: str, model: type[BaseSettings], field: str
) -> None:
    ports = {
        each["name"]: each["containerPort"]
        for _, container in containers_of(pods()[pod])
        for each in container.get("ports", ())
    }
    assert ports[port] == default_of(model, field)


def mounts(each: Object) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in each["volumeMounts"]}


def test_the_picker_finds_its_files() -> None:
    spec = pods()["promptprefix-router"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = mounts(container(spec, "picker"))
    ca = Path(default_of(RouterSettings, "ca_file"))
    token = Path(default_of(RouterSettings, "token_file"))
    (item,) = volumes[mounted[str(ca.parent)]]["configMap"]["items"]
    assert item["path"] == ca.name
    (source,) = volumes[mounted[str(token.parent)]]["projected"]["sources"]
    assert source["serviceAccountToken"]["path"] == token.name
    assert source["serviceAccountToken"]["audience"] == AUDIENCE


def test_envoy_the_picker_and_the_init_container_share_a_folder() -> None:
    spec = pods()["promptprefix-router"]
    folder = str(default_of(RouterSettings, "envoy_dir"))
    shared = {mounts(each)[folder] for _, each in containers_of(spec)}
    assert shared == {"envoy"}
    envoy = container(spec, "envoy")
    assert f"{folder}/bootstrap.json" in envoy["command"]


def test_further_variables_stand_beside_the_charts() -> None:
    extra = [{"name": "TZ", "value": "Europe/Berlin"}]
    for path, pod, name in (
        ("operator.extraEnv", "promptprefix-operator", "operator"),
        ("router.extraEnv", "promptprefix-router", "picker"),
    ):
        given = variables(pod, name, changed({}, path, extra))
        assert given == {**variables(pod, name), "TZ": "Europe/Berlin"}
