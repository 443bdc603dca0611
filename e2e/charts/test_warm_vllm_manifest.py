"""The chart warm-vllm can express the pods that the project's own cluster runs."""

from __future__ import annotations

import json
import string

import yaml

from e2e.charts.render import Object
from e2e.charts.warm_vllm import environment, flags, pod
from e2e.deployment import MANIFESTS
from e2e.engine.server import EngineOptions, engine_arguments, engine_environment

OWNED = {
    *("--model", "--served-model-name", "--host", "--port", "--dtype", "--block-size"),
    *("--max-model-len", "--scheduler-cls"),
}
ALWAYS = {"--enable-prefix-caching", "--exclude-tools-when-tool-choice-none"}


def test_the_pods_of_the_end_to_end_cluster_can_be_expressed() -> None:
    """An engine for CPUs from mounted folders, without a GPU: as ``e2e/manifests/vllm.yaml``."""
    arguments = engine_arguments("/opt/model", EngineOptions(host="0.0.0.0", fork=False))  # noqa: S104
    variables = engine_environment(
        site_packages="/opt/vllm/site", plugin="", vllm_cache="/opt/vllm/cache", home="/tmp"
    )
    hand_made = _hand_made_pod(
        arguments, {**variables, "PYTHONPATH": "/opt/promptprefix:/opt/vllm/site"}
    )
    expected = next(each for each in hand_made["containers"] if each["name"] == "vllm")
    claims = ("vllm", "model")
    values = {
        "imagePullPolicy": "Never",
        "model": {"name": "/opt/model", "servedName": "demo"},
        "engine": {
            "command": ["python3", *arguments[:2]],
            "env": [{"name": k, "value": v} for k, v in variables.items()],
            "dtype": "float32",
            "blockSize": 32,
            "maxModelLen": 3840,
            "gpuMemoryUtilization": 0,
            "extraArgs": _unowned(arguments[2:]),
        },
        "drain": {"preStopSeconds": 0, "shutdownTimeoutSeconds": 0},
        "resources": {
            "requests": {"cpu": "400m", "memory": "2Gi"},
            "limits": {"memory": "7Gi", "nvidia.com/gpu": None},
        },
        "tolerations": [],
        "dnsPolicy": "Default",
        "hostAliases": hand_made["hostAliases"],
        "extraVolumes": [v for v in hand_made["volumes"] if v["name"] in claims],
        "extraVolumeMounts": [
            {"name": name, "mountPath": f"/opt/{name}", "readOnly": True} for name in claims
        ],
    }
    spec = pod(values)
    (container,) = spec["containers"]
    assert container["command"] == expected["command"][:3]
    wanted = {"args": expected["command"][3:]}
    assert flags(container) == {**flags(wanted), "--tensor-parallel-size": "1"}
    assert environment(expected).items() <= environment(container).items()
    assert container["resources"] == expected["resources"]
    assert container["imagePullPolicy"] == "Never"
    assert spec["hostAliases"] == hand_made["hostAliases"]
    assert spec["dnsPolicy"] == "Default"
    mounts = {each["mountPath"] for each in expected["volumeMounts"]} - {"/opt/plugin"}
    assert mounts <= {each["mountPath"] for each in container["volumeMounts"]}


def _unowned(arguments: list[str]) -> list[str]:
    """Return the arguments that no value of the chart stands for."""
    rest, skip = [], False
    for argument in arguments:
        if not skip and argument not in OWNED | ALWAYS:
            rest.append(argument)
        skip = argument in OWNED
    return rest


def _hand_made_pod(arguments: list[str], variables: dict[str, str]) -> Object:
    text = string.Template((MANIFESTS / "vllm.yaml").read_text()).substitute(
        operator_ip="10.0.0.1",
        image="localhost/base",
        vllm_command=json.dumps(["python3", *arguments]),
        vllm_env=json.dumps([{"name": k, "value": v} for k, v in variables.items()]),
        **dict.fromkeys(("dependencies", "packages", "vllm", "model"), "folder"),
    )
    workload = next(each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment")
    return dict(workload["spec"]["template"]["spec"])
