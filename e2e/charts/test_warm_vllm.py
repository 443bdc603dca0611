"""What the chart warm-vllm renders: the pods, their engine, and the objects around them."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml

from e2e.charts.pod_security import containers_of, lapses, violations
from e2e.charts.render import CHARTS, HelmError, Values, notes, of_kind, pod_spec_of, run_helm
from e2e.charts.warm_vllm import (
    EVENTS,
    KEYS,
    PLAIN,
    WEBHOOK,
    deployment,
    engine,
    environment,
    flags,
    objects,
    pod,
)


def test_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in run_helm("lint", "--strict", str(CHARTS / "warm-vllm"))


def test_the_images_are_those_of_this_version() -> None:
    chart = yaml.safe_load((CHARTS / "warm-vllm" / "Chart.yaml").read_text())
    project = tomllib.loads((CHARTS.parent / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    images = [each["image"] for each in pod()["initContainers"]]
    assert {image.rpartition(":")[2] for image in images} == {project["version"]}


@pytest.mark.parametrize("values", [{}, WEBHOOK, PLAIN, KEYS, EVENTS])
def test_every_pod_meets_the_restricted_standard(values: Values) -> None:
    pods = [spec for each in objects(values) if (spec := pod_spec_of(each))]
    assert len(pods) == 2  # the engine's and that of helm test
    for spec in pods:
        assert violations(spec) == []
        assert lapses(spec) == []
        assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("values", [{}, WEBHOOK, PLAIN, KEYS, EVENTS])
def test_every_mount_has_a_volume_and_every_volume_a_mount(values: Values) -> None:
    spec = pod(values)
    mounted = {
        mount["name"] for _, each in containers_of(spec) for mount in each.get("volumeMounts", ())
    }
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, []),
        ({"serviceAccount": {"create": False}}, ["-ServiceAccount"]),
        ({"podDisruptionBudget": {"enabled": False}}, ["-PodDisruptionBudget"]),
        ({"networkPolicy": {"enabled": False}}, ["-NetworkPolicy"]),
        ({"podMonitor": {"enabled": True}}, ["PodMonitor"]),
        (
            {"autoscaling": {"enabled": True, "metrics": [{"type": "Resource"}]}},
            ["HorizontalPodAutoscaler"],
        ),
    ],
)
def test_switches_add_and_remove_objects(values: Values, kinds: list[str]) -> None:
    expected = {
        *("Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy", "Pod"),
        *(kind for kind in kinds if not kind.startswith("-")),
    } - {kind.removeprefix("-") for kind in kinds if kind.startswith("-")}
    rendered = objects(values)
    assert {each["kind"] for each in rendered} == expected
    assert len(rendered) == len(expected)
    assert {each["metadata"]["namespace"] for each in rendered} == {"ml"}


def test_selectors_find_the_engines_and_not_the_test() -> None:
    rendered = objects({"podMonitor": {"enabled": True}})
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    (test,) = of_kind(rendered, "Pod")
    (service,) = of_kind(rendered, "Service")
    selectors = [
        service["spec"]["selector"],
        deployment()["spec"]["selector"]["matchLabels"],
        of_kind(rendered, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
        of_kind(rendered, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
        of_kind(rendered, "PodMonitor")[0]["spec"]["selector"]["matchLabels"],
        pod()["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= test["metadata"]["labels"].items()


def test_named_ports_exist() -> None:
    rendered = objects({"podMonitor": {"enabled": True}})
    ports = {port["name"] for _, each in containers_of(pod()) for port in each.get("ports", ())}
    (monitor,) = of_kind(rendered, "PodMonitor")
    (service,) = of_kind(rendered, "Service")
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["http", "warming"]
    assert {"http", "warming"} == ports
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_the_defaults_start_the_engine_with_the_plugin() -> None:
    container = engine()
    assert container["image"] == "docker.io/vllm/vllm-openai:v0.32.0"
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][0] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert flags(container) == {
        "--served-model-name": "Qwen/Qwen2.5-0.5B-Instruct",
        "--host": "0.0.0.0",  # noqa: S104
        "--port": "8000",
        "--dtype": "auto",
        "--tensor-parallel-size": "1",
        "--gpu-memory-utilization": "0.9",
        "--enable-prefix-caching": "",
        "--exclude-tools-when-tool-choice-none": "",
        "--shutdown-timeout": "60",
        "--scheduler-cls": "promptprefix_vllm.scheduler.scheduler_class",
    }
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model": {"servedName": "chat"}}, {"--served-model-name": "chat"}),
        ({"model": {"revision": "main"}}, {"--revision": "main"}),
        ({"engine": {"maxModelLen": 1048576}}, {"--max-model-len": "1048576"}),
        ({"engine": {"blockSize": 32}}, {"--block-size": "32"}),
        ({"engine": {"extraArgs": ["--max-num-seqs", "16"]}}, {"--max-num-seqs": "16"}),
        ({"offload": {"sizeGiB": 24}}, {"--kv-offloading-size": "24"}),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 4}}, "engine": {"tensorParallelSize": 4}},
            {"--tensor-parallel-size": "4"},
        ),
    ],
)
def test_values_become_flags(values: Values, expected: dict[str, str]) -> None:
    assert flags(engine(values)) == {**flags(engine()), **expected}


def test_zero_leaves_a_flag_out() -> None:
    values = {"engine": {"gpuMemoryUtilization": 0}, "drain": {"shutdownTimeoutSeconds": 0}}
    assert flags(engine()).keys() - flags(engine(values)).keys() == {
        "--gpu-memory-utilization",
        "--shutdown-timeout",
    }


def test_kv_events_go_to_a_socket_on_a_volume() -> None:
    container = engine(EVENTS)
    config = json.loads(flags(container)["--kv-events-config"])
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv",
        "endpoint": "ipc:///run/kv-events/events",
        "replay_endpoint": "ipc:///run/kv-events/events-replay",
    }
    assert {"name": "kv-events", "mountPath": "/run/kv-events"} in container["volumeMounts"]
    assert container["ports"] == engine()["ports"]


def test_kv_events_over_tcp_need_no_volume() -> None:
    spec = pod({"kvEvents": {"enabled": True, "endpoint": "tcp://*:5557"}})
    assert "kv-events" not in {volume["name"] for volume in spec["volumes"]}


def test_variables_of_the_user_beat_the_charts_own() -> None:
    own = environment(engine())
    given = environment(engine({"engine": {"env": [{"name": "HOME", "value": "/tmp/home"}]}}))
    assert {name for name in own if own[name] != given[name]} == {"HOME"}
    assert given["HOME"] == "/tmp/home"


def test_a_python_path_stays_behind_the_plugin() -> None:
    values = {"engine": {"env": [{"name": "PYTHONPATH", "value": "/opt/site"}]}}
    assert environment(engine(values))["PYTHONPATH"] == "/opt/promptprefix:/opt/site"
    assert environment(engine({**values, **PLAIN}))["PYTHONPATH"] == "/opt/site"
    assert environment(engine())["PYTHONPATH"] == "/opt/promptprefix"


def test_everything_that_is_written_goes_to_a_mounted_folder() -> None:
    container = engine()
    writable = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
    folders = {
        name: value
        for name, value in environment(container).items()
        if name.endswith(("HOME", "_DIR", "_ROOT", "_PATH"))
    }
    assert {"HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"} <= folders.keys()
    for name, value in folders.items():
        assert any(value == path or value.startswith(f"{path}/") for path in writable), name


def test_secrets_come_by_reference() -> None:
    container = engine(KEYS)
    assert environment(container)["VLLM_API_KEY"] == {
        "secretKeyRef": {"name": "keys", "key": "api-key"}
    }
    assert environment(container)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert "--api-key" not in flags(container)


def test_a_plain_engine_has_no_part_of_warming() -> None:
    text = json.dumps([deployment(PLAIN), *of_kind(objects(PLAIN), "NetworkPolicy")])
    assert "promptprefix." not in text
    assert "promptprefix_" not in text
    assert "8090" not in text


def test_an_autoscaler_owns_the_replicas() -> None:
    metrics = [{"type": "Pods", "pods": {"metric": {"name": "waiting"}}}]
    values = {"autoscaling": {"enabled": True, "metrics": metrics, "maxReplicas": 40}}
    (autoscaler,) = of_kind(objects(values), "HorizontalPodAutoscaler")
    assert "replicas" not in deployment(values)["spec"]
    assert deployment()["spec"]["replicas"] == 1
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == deployment()["metadata"]["name"]
    assert autoscaler["spec"]["metrics"] == metrics


def test_the_sleep_before_a_stop_suits_the_cluster() -> None:
    assert engine(kube_version="1.30.0")["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}
    assert engine(kube_version="1.29.4")["lifecycle"] == {
        "preStop": {"exec": {"command": ["sleep", "10"]}}
    }
    assert "lifecycle" not in engine({"drain": {"preStopSeconds": 0}})


def test_older_clusters_are_refused() -> None:
    with pytest.raises(HelmError, match=r"1\.29"):
        objects(kube_version="1.28.0")


def test_an_update_keeps_warm_pods_until_their_successors_are_warm() -> None:
    strategy = deployment()["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment({"rollout": {"strategy": "Recreate"}})["spec"]["strategy"] == {
        "type": "Recreate"
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["PromptPrefix", "free GPU"]),
        (WEBHOOK, ["is not injected"]),
        (PLAIN, ["hold no prefixes"]),
        ({"offload": {"sizeGiB": 8}}, ["takes 8 GiB"]),
        ({"podMonitor": {"enabled": True}}, ["metricsClients is empty"]),
    ],
)
def test_the_notes_name_what_to_mind(values: Values, expected: list[str]) -> None:
    text = notes("warm-vllm", values, release="qwen", namespace="ml")
    assert "helm test qwen -n ml" in text
    assert [each for each in expected if each not in text] == []
