"""Values of the charts for the project's node: local images, a mounted vLLM on the CPU."""

from __future__ import annotations

from typing import Any

from e2e.engine.server import EngineOptions, engine_arguments, engine_environment
from e2e.images import Images
from e2e.install.folders import Folders

SYSTEM = "promptprefix-system"
TEAM = "ml"
MODEL = "demo"
LABELS = {"team": "search"}
"""Labels of every vLLM pod of the team, however it was deployed."""
KEY_FILE = "/run/promptprefix/key/key"


def image(name: str) -> dict[str, str]:
    """Return the chart's form of an image name."""
    path, _, tag = name.rpartition(":")
    registry, _, repository = path.rpartition("/")
    return {"registry": registry, "repository": repository, "tag": tag}


def promptprefix(images: Images) -> dict[str, Any]:
    """Return values of the chart ``promptprefix``."""
    return {
        "namespaces": [TEAM],
        "imagePullPolicy": "Never",
        "operator": {"image": image(images.operator)},
        "webhook": {
            "sidecar": {"image": image(images.sidecar)},
            "plugin": {"image": image(images.plugin)},
        },
        "router": {
            "replicas": 1,
            "drainSeconds": 1,
            "image": image(images.router),
            "envoy": {"image": image(images.envoy), "concurrency": 1},
        },
        "test": {"model": MODEL, "selector": LABELS},
    }


def warm_vllm(images: Images, base: str, folders: Folders) -> dict[str, Any]:
    """Return values of the chart ``warm-vllm``: ``base`` is an image with Python alone."""
    return {
        "replicas": 1,
        "imagePullPolicy": "Never",
        "podLabels": LABELS,
        "model": {"name": folders.model, "servedName": MODEL},
        "engine": {
            "image": image(base),
            "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            "dtype": "float32",
            "maxModelLen": _option("--max-model-len"),
            "blockSize": _option("--block-size"),
            "gpuMemoryUtilization": 0,
            "extraArgs": _extra_arguments(),
            "env": engine_env(folders),
        },
        "warming": {
            "sidecar": {"image": image(images.sidecar)},
            "plugin": {"image": image(images.plugin)},
        },
        "extraVolumes": folders.volumes(),
        "extraVolumeMounts": folders.mounts(),
        "shmSize": "1Gi",
        "resources": {
            "requests": {"cpu": "300m", "memory": "2Gi"},
            "limits": {"memory": "7Gi", "nvidia.com/gpu": None},
        },
        "drain": {
            "preStopSeconds": 0,
            "shutdownTimeoutSeconds": 0,
            "terminationGracePeriodSeconds": 5,
        },
        "probes": {"startup": {"periodSeconds": 1}, "readiness": {"periodSeconds": 1}},
    }


def engine_env(folders: Folders) -> list[dict[str, str]]:
    """Return the engine's environment: its packages are mounted, not baked into an image."""
    environment = engine_environment(
        site_packages=folders.site_packages, plugin="", vllm_cache=folders.vllm_cache, home="/tmp"
    )
    return [{"name": name, "value": value} for name, value in environment.items()]


def plain_arguments(folders: Folders) -> list[str]:
    """Return the engine's command line as somebody writes it who knows nothing of us."""
    options = EngineOptions(host="0.0.0.0", plugin=False, fork=False)  # noqa: S104 - a pod's own address
    return ["python3", *engine_arguments(folders.model, options)]


def _option(name: str) -> int:
    arguments = engine_arguments("", EngineOptions())
    return int(arguments[arguments.index(name) + 1])


_BY_CHART = ("--model", "--served-model-name", "--host", "--port", "--dtype", "--block-size",
             "--max-model-len")  # fmt: skip
_BY_CHART_ALONE = ("--exclude-tools-when-tool-choice-none", "--enable-prefix-caching")


def _extra_arguments() -> list[str]:
    """Return what the chart has no value for."""
    arguments = iter(engine_arguments("", EngineOptions(plugin=False, fork=False))[2:])
    extra: list[str] = []
    for argument in arguments:
        if argument in _BY_CHART:
            next(arguments)
        elif argument not in _BY_CHART_ALONE:
            extra.append(argument)
    return extra
