"""Both ways to warm: what the chart writes out is what the webhook adds, and our parts read it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from e2e.charts.render import Object, Values, of_kind
from e2e.charts.warm_vllm import EVENTS, KEYS, deployment, engine, environment, objects, pod
from promptprefix.annotations import INJECT, InjectionResult
from promptprefix_operator.injection.injector import inject
from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_sidecar.settings import ENV_PREFIX, Settings
from promptprefix_vllm.settings import Settings as PluginSettings
from promptprefix_vllm.settings import read_settings

OPTIONS = InjectionOptions(
    sidecar_image="ghcr.io/promptprefix/promptprefix-sidecar:0.1.0",
    plugin_image="ghcr.io/promptprefix/promptprefix-plugin:0.1.0",
    control_url="https://promptprefix-operator.promptprefix-system.svc:8443",
    namespaces=frozenset({"ml"}),
)
SECRET = {"secretKeyRef": {"name": "paths", "key": "python"}}


def with_env(**variable: object) -> Values:
    return {"engine": {"env": [{"name": "PYTHONPATH", **variable}]}}


CASES: dict[str, Values] = {
    "the defaults": {},
    "keys": KEYS,
    "KV events": EVENTS,
    "KV events at a port": {"kvEvents": {"enabled": True, "endpoint": "tcp://*:5557"}},
    "KV events of the container's user": {
        **EVENTS,
        "containerSecurityContext": {"runAsUser": 3000},
    },
    "KV events elsewhere": {"kvEvents": {"enabled": True, "endpoint": "tcp://10.0.0.1:5557"}},
    "a time zone": {"engine": {"timeZone": "Europe/Berlin"}},
    "another port": {"engine": {"port": 9000}},
    "another start": {
        "engine": {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}
    },
    "more flags": {"engine": {"extraArgs": ["--enforce-eager", "--max-num-seqs=16"]}},
    "a path": with_env(value="/opt/site"),
    "an empty path": with_env(value=""),
    "a path from elsewhere": with_env(valueFrom=SECRET),
    "a path from a ConfigMap": {"engine": {"envFrom": [{"configMapRef": {"name": "all"}}]}},
    "no such path": {"engine": {"envFrom": [{"prefix": "HF_", "secretRef": {"name": "hub"}}]}},
    "claims": {"modelCache": {"existingClaim": "models"}, "workspace": {"existingClaim": "work"}},
    "volumes": {
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
    },
    "another container": {"extraContainers": [{"name": "reader", "image": "reader"}]},
    "a pull policy": {"imagePullPolicy": "IfNotPresent"},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_the_webhook_adds_what_the_chart_writes_out(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = deployment({**values, "warming": {"mode": "webhook"}})["spec"]["template"]
    assert labelled["metadata"]["labels"][INJECT] == "true"
    injection = inject(labelled, "ml", OPTIONS)
    assert injection.result is InjectionResult.HARD, injection.message
    injected = patched(labelled, injection.operations)["spec"]
    written = pod(values)
    assert sidecar_settings(injected, monkeypatch) == sidecar_settings(written, monkeypatch)
    assert comparable(injected) == comparable(written)


@pytest.mark.parametrize("user", [None, 65533, 1_000_680_000])
def test_the_webhook_has_the_same_settings(
    user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = deployment({"warming": {"mode": "webhook"}})["spec"]["template"]
    options = replace(OPTIONS, run_as_user=user, ready_timeout_s=900, warm_chunk_tokens=64)
    injected = patched(labelled, inject(labelled, "ml", options).operations)["spec"]
    given = {"runAsUser": user, "readyTimeoutSeconds": 900, "warmChunkTokens": 64}
    written = pod({"warming": {"sidecar": given}})
    assert sidecar_settings(injected, monkeypatch) == sidecar_settings(written, monkeypatch)
    assert comparable(injected) == comparable(written)
    assert {each["securityContext"].get("runAsUser") for each in written["initContainers"]} == {
        user
    }


def test_the_webhook_leaves_a_written_out_pod_alone() -> None:
    template = copy.deepcopy(deployment()["spec"]["template"])
    template["metadata"]["labels"][INJECT] = "true"
    injection = inject(template, "ml", OPTIONS)
    assert (injection.result, injection.operations) == (InjectionResult.HARD, ())


def test_the_webhook_passes_over_a_plain_engine() -> None:
    template = deployment({"warming": {"enabled": False}})["spec"]["template"]
    injection = inject(template, "ml", OPTIONS)
    assert (injection.result, injection.operations) == (InjectionResult.NONE, ())


def test_the_sidecars_defaults_are_the_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    assert environment(sidecar(pod())).keys() <= known
    required = Settings.model_validate({"control_url": OPTIONS.control_url, "pod_ip": "POD_IP"})
    assert sidecar_settings(pod(), monkeypatch) == required


def test_values_become_the_sidecars_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "leaseSeconds": 60,
        "readyTimeoutSeconds": 900,
        "readySettleSeconds": 0,
        "holdSeconds": 0,
        "warmTimeoutSeconds": 30.5,
        "warmChunkTokens": 1_048_576,
        "softWaitSeconds": 0.5,
        "reportIntervalSeconds": 5,
        "probeIntervalSeconds": 0.5,
        "touchIntervalSeconds": 60,
        "digestCheckIntervalSeconds": 3600,
        "logLevel": "debug",
        "listenHost": "::",
    }
    spec = pod({"warming": {"sidecar": given}, **KEYS, "engine": {"port": 9000}})
    settings = sidecar_settings(spec, monkeypatch)
    assert [
        *(settings.lease_s, settings.ready_timeout_s, settings.ready_settle_s, settings.hold_s),
        *(settings.warm_timeout_s, settings.warm_chunk_tokens, settings.soft_wait_s),
        *(settings.report_interval_s, settings.probe_interval_s),
        *(settings.touch_interval_s, settings.digest_check_interval_s, settings.log_level),
        settings.listen_host,
    ] == list(given.values())
    assert settings.engine_port == 9000
    assert settings.engine_api_key is not None


def test_the_plugins_defaults_are_the_charts() -> None:
    variables = environment(engine())
    settings = read_settings({**variables, "PROMPTPREFIX_KEY_FILE": "/dev/zero/none"})
    default = PluginSettings()
    assert (settings.budget, settings.hold_seconds) == (default.budget, default.hold_seconds)
    changed = environment(engine({"warming": {"pinBudget": 0.25, "warmupHoldSeconds": 5}}))
    settings = read_settings({**changed, "PROMPTPREFIX_KEY_FILE": "/dev/zero/none"})
    assert (settings.budget, settings.hold_seconds) == (0.25, 5)


def test_engine_and_key_container_name_the_same_file() -> None:
    spec = pod()
    keys = [each for each in spec["initContainers"] if each["name"] == "promptprefix-key"]
    files = {
        environment(each)["PROMPTPREFIX_KEY_FILE"]
        for each in (*keys, sidecar(spec), *spec["containers"])
    }
    assert files == {"/run/promptprefix/key/key"}


def test_the_sidecar_reads_the_events_as_the_engines_user() -> None:
    found = sidecar(pod(EVENTS))
    variables = environment(found)
    assert {name: value for name, value in variables.items() if "KV_EVENTS" in name} == {
        "PROMPTPREFIX_KV_EVENTS_ENDPOINT": "ipc:///run/kv-events/events",
        "PROMPTPREFIX_KV_EVENTS_REPLAY_ENDPOINT": "ipc:///run/kv-events/events-replay",
        "PROMPTPREFIX_KV_EVENTS_TOPIC": "kv",
    }
    mount = {"name": "kv-events", "mountPath": "/run/kv-events", "readOnly": True}
    assert mount in found["volumeMounts"]
    assert found["securityContext"]["runAsUser"] == pod(EVENTS)["securityContext"]["runAsUser"]
    assert sidecar(pod())["securityContext"]["runAsUser"] == 65532


def test_events_at_a_port_are_dialled_on_loopback_by_the_sidecars_own_user() -> None:
    ports = {"endpoint": "tcp://*:5557", "replayEndpoint": "tcp://*:5558", "topic": ""}
    found = sidecar(pod({"kvEvents": {"enabled": True, **ports}}))
    variables = environment(found)
    assert {name: value for name, value in variables.items() if "KV_EVENTS" in name} == {
        "PROMPTPREFIX_KV_EVENTS_ENDPOINT": "tcp://127.0.0.1:5557",
        "PROMPTPREFIX_KV_EVENTS_REPLAY_ENDPOINT": "tcp://127.0.0.1:5558",
    }
    assert found["securityContext"]["runAsUser"] == 65532


def test_events_that_are_sent_elsewhere_are_not_read() -> None:
    values = {"kvEvents": {"enabled": True, "endpoint": "tcp://10.0.0.1:5557"}}
    found = sidecar(pod(values))
    assert not any("KV_EVENTS" in name for name in environment(found))
    assert [each["containerPort"] for each in found["ports"]] == [8090]
    assert blocks_rules(values, 8091) == []


def blocks_rules(values: Values, port: int) -> list[Object]:
    """Return the NetworkPolicy's rules for the port of the names of blocks."""
    (policy,) = of_kind(objects(values), "NetworkPolicy")
    return [
        rule
        for rule in policy["spec"]["ingress"]
        if {"port": port, "protocol": "TCP"} in rule["ports"]
    ]


ROUTERS = {
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/name": "promptprefix",
            "app.kubernetes.io/component": "router",
        }
    }
}


def test_routers_alone_read_the_names_of_cached_blocks() -> None:
    found = sidecar(pod(EVENTS))
    assert environment(found)["PROMPTPREFIX_BLOCKS_PORT"] == "8091"
    assert {"name": "blocks", "containerPort": 8091, "protocol": "TCP"} in found["ports"]
    (rule,) = blocks_rules(EVENTS, 8091)
    system = {"matchLabels": {"kubernetes.io/metadata.name": "promptprefix-system"}}
    assert rule["from"] == [{**ROUTERS, "namespaceSelector": system}, ROUTERS]
    peers = [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
    (rule,) = blocks_rules({**EVENTS, "networkPolicy": {"routers": peers}}, 8091)
    assert rule["from"] == peers


def test_names_of_cached_blocks_may_have_another_port_or_none() -> None:
    other = {"kvEvents": {"enabled": True, "blocksPort": 8092}}
    assert environment(sidecar(pod(other)))["PROMPTPREFIX_BLOCKS_PORT"] == "8092"
    assert len(blocks_rules(other, 8092)) == 1
    none = {"kvEvents": {"enabled": True, "blocksPort": 0}}
    found = sidecar(pod(none))
    assert environment(found)["PROMPTPREFIX_BLOCKS_PORT"] == "0"
    assert [each["containerPort"] for each in found["ports"]] == [8090]
    assert blocks_rules(none, 8091) == blocks_rules(none, 0) == []
    for values in ({}, {**EVENTS, "warming": {"enabled": False}}):
        assert blocks_rules(values, 8091) == []


def sidecar(spec: Object) -> Object:
    (found,) = (c for c in spec["initContainers"] if c["name"] == "promptprefix-sidecar")
    return dict(found)


def sidecar_settings(spec: Object, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return what the sidecar reads from its variables; those from elsewhere get any text."""
    with monkeypatch.context() as patch:
        for name, value in environment(sidecar(spec)).items():
            text = value if isinstance(value, str) else name.removeprefix(ENV_PREFIX)
            patch.setenv(name, text)
        return Settings()


def comparable(spec: Object) -> Object:
    """Return the spec with what has no order as mappings, and without the sidecar's settings."""
    result = copy.deepcopy(spec)
    for container in (*result["initContainers"], *result["containers"]):
        container["volumeMounts"] = _by("mountPath", container.get("volumeMounts", []))
        if container["name"] == "promptprefix-sidecar":
            own = Settings.model_fields
            container["env"] = [
                each
                for each in container["env"]
                if each["name"].removeprefix(ENV_PREFIX).lower() not in own
            ]
        container["env"] = _by("name", container.get("env", []))
    result["volumes"] = _by("name", result["volumes"])
    return dict(result)


def _by(key: str, items: list[Object]) -> dict[str, Object]:
    mapping = {each[key]: each for each in items}
    assert len(mapping) == len(items)
    return mapping


def patched(manifest: Object, operations: tuple[Object, ...]) -> Object:
    """Apply a JSON patch (RFC 6902) of additions and replacements."""
    result = copy.deepcopy(manifest)
    for operation in json.loads(json.dumps(operations)):
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
        )
        place: Any = result
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if not isinstance(place, list):
            place[last] = operation["value"]
        elif operation["op"] == "replace":
            place[int(last)] = operation["value"]
        else:
            place.insert(len(place) if last == "-" else int(last), operation["value"])
    return result
