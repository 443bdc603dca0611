"""Every value of the chart warm-vllm: documented, used, and refused where it is wrong."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from e2e.charts.documented_values import documented_values, table
from e2e.charts.render import CHARTS, HelmError, Values
from e2e.charts.warm_vllm import objects

README = CHARTS / "warm-vllm" / "README.md"
SCHEMA = CHARTS / "warm-vllm" / "values.schema.json"
DIGEST = f"sha256:{'0' * 64}"
PEER = [{"podSelector": {"matchLabels": {"app": "x"}}}]
QUANTITIES = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}

CHANGES: dict[str, Any] = {
    "nameOverride": "other",
    "fullnameOverride": "other",
    "commonLabels": {"team": "search"},
    "operatorNamespace": "other",
    "replicas": 2,
    "model.name": "org/other",
    "model.servedName": "other",
    "model.revision": "v2",
    "engine.command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
    "engine.extraArgs": ["--enforce-eager"],
    "engine.env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}],
    "engine.envFrom": [{"secretRef": {"name": "storage"}}],
    "engine.port": 9000,
    "engine.dtype": "bfloat16",
    "engine.maxModelLen": 4096,
    "engine.gpuMemoryUtilization": 0.5,
    "engine.tensorParallelSize": 2,
    "engine.blockSize": 32,
    "engine.excludeToolsWhenToolChoiceNone": False,
    "engine.timeZone": "Europe/Berlin",
    "apiKey.existingSecret": "keys",
    "apiKey.secretKey": "other",
    "hfToken.existingSecret": "hub",
    "hfToken.secretKey": "other",
    "warming.enabled": False,
    "warming.mode": "webhook",
    "warming.pinBudget": 0.25,
    "warming.warmupHoldSeconds": 10,
    "warming.sidecar.controlUrl": "https://operator.example.svc",
    "warming.sidecar.runAsUser": 1000680000,
    "warming.sidecar.listenHost": "::",
    "warming.sidecar.leaseSeconds": 60,
    "warming.sidecar.readyTimeoutSeconds": 60,
    "warming.sidecar.readySettleSeconds": 5,
    "warming.sidecar.holdSeconds": 0,
    "warming.sidecar.warmTimeoutSeconds": 60,
    "warming.sidecar.warmChunkTokens": 512,
    "warming.sidecar.softWaitSeconds": 5,
    "warming.sidecar.reportIntervalSeconds": 5,
    "warming.sidecar.probeIntervalSeconds": 1,
    "warming.sidecar.touchIntervalSeconds": 60,
    "warming.sidecar.digestCheckIntervalSeconds": 60,
    "warming.sidecar.logLevel": "debug",
    "warming.sidecar.resources": QUANTITIES,
    "kvEvents.enabled": True,
    "kvEvents.endpoint": "tcp://*:5557",
    "kvEvents.replayEndpoint": "ipc:///run/kv-events/replay",
    "kvEvents.topic": "kv@other",
    "kvEvents.blocksPort": 8092,
    "offload.sizeGiB": 1.5,
    "modelCache.existingClaim": "models",
    "modelCache.mountPath": "/srv/models",
    "modelCache.readOnly": True,
    "modelCache.sizeLimit": "100Gi",
    "workspace.existingClaim": "work",
    "workspace.mountPath": "/srv/home",
    "workspace.sizeLimit": "20Gi",
    "shmSize": "8Gi",
    "extraVolumes": [{"name": "data", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "tmp", "mountPath": "/data"}],
    "extraContainers": [{"name": "reader", "image": "reader"}],
    "resources": {**QUANTITIES, "limits": {"memory": "2Gi", "nvidia.com/gpu": 2}},
    "imagePullPolicy": "Never",
    "imagePullSecrets": [{"name": "registry"}],
    "runtimeClassName": "nvidia",
    "priorityClassName": "serving",
    "schedulerName": "other",
    "nodeSelector": {"gpu": "l4"},
    "tolerations": [],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [],
    "podLabels": {"app": "vllm"},
    "podAnnotations": {"example.com/a": "b"},
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "dnsPolicy": "Default",
    "dnsConfig": {"nameservers": ["10.0.0.2"]},
    "podSecurityContext": {"runAsUser": 1000680000},
    "containerSecurityContext": {"readOnlyRootFilesystem": False},
    "serviceAccount.create": False,
    "serviceAccount.name": "other",
    "serviceAccount.annotations": {"example.com/role": "r"},
    "rollout.strategy": "Recreate",
    "rollout.maxSurge": "25%",
    "rollout.maxUnavailable": 1,
    "rollout.progressDeadlineSeconds": 7200,
    "rollout.revisionHistoryLimit": 1,
    "drain.preStopSeconds": 5,
    "drain.shutdownTimeoutSeconds": 30,
    "drain.terminationGracePeriodSeconds": 100,
    "probes.startup.periodSeconds": 1,
    "probes.startup.failureThreshold": 1,
    "probes.readiness.periodSeconds": 1,
    "probes.readiness.timeoutSeconds": 1,
    "probes.readiness.failureThreshold": 1,
    "probes.liveness.periodSeconds": 1,
    "probes.liveness.timeoutSeconds": 1,
    "probes.liveness.failureThreshold": 1,
    "service.type": "NodePort",
    "service.port": 8000,
    "service.annotations": {"example.com/a": "b"},
    "autoscaling.enabled": True,
    "autoscaling.minReplicas": 2,
    "autoscaling.maxReplicas": 40,
    "autoscaling.metrics": [{"type": "External"}],
    "autoscaling.behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    "podDisruptionBudget.enabled": False,
    "podDisruptionBudget.maxUnavailable": "10%",
    "podDisruptionBudget.minAvailable": 1,
    "podMonitor.enabled": True,
    "podMonitor.interval": "1m",
    "podMonitor.scrapeTimeout": "5s",
    "podMonitor.labels": {"release": "prometheus"},
    "networkPolicy.enabled": False,
    "networkPolicy.clients": [],
    "networkPolicy.metricsClients": PEER,
    "networkPolicy.routers": PEER,
    "networkPolicy.operator": PEER,
    "networkPolicy.dnsPorts": [5353],
    "networkPolicy.modelDownloads": False,
    "networkPolicy.extraIngress": [{"from": PEER}],
    "networkPolicy.extraEgress": [{"to": PEER}],
    **{
        f"{image}.image.{field}": value
        for image in ("engine", "warming.plugin", "warming.sidecar")
        for field, value in {
            "registry": "registry.example:5000/team",
            "repository": "mirror/image",
            "tag": "v9",
            "digest": DIGEST,
        }.items()
    },
}
"""For each value another one."""

NEEDS: dict[str, dict[str, Any]] = {
    "engine.tensorParallelSize": {"resources.limits": {"nvidia.com/gpu": 2}},
    "apiKey.secretKey": {"apiKey.existingSecret": "keys"},
    "hfToken.secretKey": {"hfToken.existingSecret": "hub"},
    "kvEvents.endpoint": {"kvEvents.enabled": True},
    "kvEvents.replayEndpoint": {"kvEvents.enabled": True},
    "kvEvents.topic": {"kvEvents.enabled": True},
    "kvEvents.blocksPort": {"kvEvents.enabled": True},
    "networkPolicy.routers": {"kvEvents.enabled": True},
    "autoscaling.enabled": {"autoscaling.metrics": [{"type": "Resource"}]},
    "autoscaling.minReplicas": {
        "autoscaling.enabled": True,
        "autoscaling.metrics": [{"type": "Resource"}],
    },
    "podDisruptionBudget.minAvailable": {"podDisruptionBudget.maxUnavailable": ""},
    "podMonitor.interval": {"podMonitor.enabled": True},
}
"""What must be set besides, so that a value has an effect; the first of a group stands for it."""
MAKES_VALID = {"autoscaling.enabled", "podDisruptionBudget.minAvailable"}
"""Values without which their needs are refused."""
for name in ("maxReplicas", "metrics", "behavior"):
    NEEDS[f"autoscaling.{name}"] = NEEDS["autoscaling.minReplicas"]
for name in ("scrapeTimeout", "labels"):
    NEEDS[f"podMonitor.{name}"] = NEEDS["podMonitor.interval"]


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return values by dotted path as Helm reads them; no key of a value has a dot in it."""
    values: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = copy.deepcopy(value)
    return values


def test_the_readme_has_every_value() -> None:
    assert README.read_text().endswith(f"\n{table('warm-vllm')}")


def test_every_value_has_another_one_here() -> None:
    assert CHANGES.keys() == {value.path for value in documented_values("warm-vllm")}


@pytest.mark.parametrize("path", CHANGES)
def test_every_value_is_used(path: str) -> None:
    needed = NEEDS.get(path, {})
    before = {} if path in MAKES_VALID else needed
    assert objects(nested(before)) != objects(nested({**needed, path: CHANGES[path]}))


def test_the_schema_knows_exactly_the_values() -> None:
    schema = json.loads(SCHEMA.read_text())
    documented = {value.path for value in documented_values("warm-vllm")}
    closed = {path for path, part in _parts(schema, schema, "") if "additionalProperties" in part}
    parents = {path.rpartition(".")[0] for path in documented}
    assert parents <= closed
    known = {path for path, _ in _parts(schema, schema, "") if path.rpartition(".")[0] in parents}
    folders = {path[:end] for path in documented for end, mark in enumerate(path) if mark == "."}
    assert known - {"", "global"} - folders == documented


def _parts(schema: Any, part: Any, path: str) -> list[tuple[str, Any]]:
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
    found = [(path, part)]
    for name, child in part.get("properties", {}).items():
        if isinstance(child, dict):
            found += _parts(schema, child, f"{path}.{name}".lstrip("."))
    return found


WRONG: list[tuple[str, object, str]] = [
    ("unknown", 1, "'unknown' not allowed"),
    ("engine.dtypes", "auto", "at '/engine'"),
    ("replicas", -1, "at '/replicas'"),
    ("replicas", "2", "at '/replicas'"),
    ("model.name", "", "at '/model/name'"),
    ("model.name", "--help", "at '/model/name'"),
    ("engine.port", 70000, "at '/engine/port'"),
    ("engine.command", [], "at '/engine/command'"),
    ("engine.extraArgs", [1], "at '/engine/extraArgs/0'"),
    ("engine.env", [{"value": "x"}], "at '/engine/env/0'"),
    ("engine.dtype", "int4", "at '/engine/dtype'"),
    ("engine.gpuMemoryUtilization", 90, "at '/engine/gpuMemoryUtilization'"),
    ("engine.image.tag", "a b", "at '/engine/image/tag'"),
    ("engine.image.digest", "sha256:1", "at '/engine/image/digest'"),
    ("warming.enabled", "yes", "at '/warming/enabled'"),
    ("warming.mode", "auto", "at '/warming/mode'"),
    ("warming.pinBudget", 50, "at '/warming/pinBudget'"),
    ("warming.sidecar.controlUrl", "http://operator:8443", "at '/warming/sidecar/controlUrl'"),
    ("warming.sidecar.leaseSeconds", 5, "at '/warming/sidecar/leaseSeconds'"),
    ("warming.sidecar.holdSeconds", 60, "at '/warming/sidecar/holdSeconds'"),
    ("warming.sidecar.logLevel", "trace", "at '/warming/sidecar/logLevel'"),
    ("warming.sidecar.resources", {"requests": {"cpu": "a lot"}}, "resources/requests/cpu'"),
    ("kvEvents.endpoint", "ipc://events", "at '/kvEvents/endpoint'"),
    ("kvEvents.blocksPort", 70_000, "at '/kvEvents/blocksPort'"),
    ("modelCache.mountPath", "models", "at '/modelCache/mountPath'"),
    ("warming.sidecar.runAsUser", 0, "at '/warming/sidecar/runAsUser'"),
    ("operatorNamespace", "", "at '/operatorNamespace'"),
    ("extraVolumes", [{"name": "promptprefix-key"}], "at '/extraVolumes/0'"),
    ("extraVolumeMounts", [{"name": "data"}], "at '/extraVolumeMounts/0'"),
    ("tolerations", [{"effect": "NoStart"}], "at '/tolerations/0/effect'"),
    ("topologySpreadConstraints", [{"maxSkew": 1}], "at '/topologySpreadConstraints/0'"),
    ("podLabels", {"app.kubernetes.io/name": "x"}, "at '/podLabels/app.kubernetes.io~1name'"),
    ("podLabels", {"a": "b c"}, "at '/podLabels/a'"),
    ("autoscaling.enabled", True, "at '/autoscaling/metrics'"),
    ("rollout.maxSurge", "a quarter", "at '/rollout/maxSurge'"),
    ("service.type", "ExternalName", "at '/service/type'"),
    ("networkPolicy.clients", [{"pods": {}}], "at '/networkPolicy/clients/0'"),
    ("networkPolicy.dnsPorts", [], "at '/networkPolicy/dnsPorts'"),
]
"""Wrong values, and the place that must be named."""


def _batches() -> list[dict[str, tuple[object, str]]]:
    """Share the wrong values out so that none touches another: Helm names all of a batch."""
    batches: list[dict[str, tuple[object, str]]] = []
    for path, value, place in WRONG:
        free = next((batch for batch in batches if path not in batch), None)
        if free is None:
            free = {}
            batches.append(free)
        free[path] = (value, place)
    return batches


@pytest.mark.parametrize("batch", _batches())
def test_the_schema_names_the_place_of_a_wrong_value(batch: dict[str, tuple[object, str]]) -> None:
    with pytest.raises(HelmError) as error:
        objects(nested({path: value for path, (value, _) in batch.items()}))
    lines = str(error.value).splitlines()
    missing = [place for _, place in batch.values() if not any(place in line for line in lines)]
    assert missing == []
    assert len([line for line in lines if line.strip().startswith("- at")]) >= len(batch)


def test_no_value_can_be_taken_away_but_those_that_say_so() -> None:
    """A null removes a default, which a template would read as false or as nothing."""
    taken = CHANGES.keys() - {"warming.sidecar.runAsUser"}
    with pytest.raises(HelmError) as error:
        objects(nested(dict.fromkeys(taken)))
    missing = [line for line in str(error.value).splitlines() if "missing propert" in line]
    named = set(re.findall(r"'(\w+)'", " ".join(missing)))
    assert named == {path.rpartition(".")[2] for path in taken}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(
            ({"engine.extraArgs": ["--enforce-eager", argument]}, f"engine.extraArgs[1]: {flag}")
            for argument, flag in {
                "--model=x": "--model",
                "--port": "--port",
                "--scheduler_cls=x": "--scheduler-cls",
                "--api-key": "--api-key",
                "--no-enable-prefix-caching": "--no-enable-prefix-caching",
                "--enable-scale-out": "--enable-scale-out",
            }.items()
        ),
        (
            {"engine.env": [{"name": "VLLM_API_KEY", "value": "x"}]},
            "engine.env[0]: VLLM_API_KEY is not allowed here; use apiKey.existingSecret",
        ),
        ({"engine.image.tag": ""}, "engine.image: set a tag or a digest"),
        ({"engine.tensorParallelSize": 8}, "resources.limits gives a pod 1 nvidia.com/gpu"),
        ({"drain.preStopSeconds": 30}, "drain.terminationGracePeriodSeconds is 90, but"),
        (
            {"kvEvents.enabled": True, "kvEvents.replayEndpoint": "ipc:///run/other/replay"},
            "kvEvents.replayEndpoint: put its socket into the folder",
        ),
        (
            {"kvEvents.enabled": True, "containerSecurityContext.runAsUser": 0},
            "kvEvents.endpoint: only root could open the socket",
        ),
        (
            {"kvEvents.enabled": True, "kvEvents.blocksPort": 8090},
            "kvEvents.blocksPort: 8090 is the port of the sidecar's probes",
        ),
        (
            {"kvEvents.enabled": True, "kvEvents.blocksPort": 8000},
            "kvEvents.blocksPort: 8000 is the port of the engine",
        ),
        (
            {"kvEvents.enabled": True, "kvEvents.blocksPort": 8092, "warming.mode": "webhook"},
            "kvEvents.blocksPort: injected sidecars have 8091",
        ),
        ({"rollout.maxSurge": 0}, "rollout.maxSurge and rollout.maxUnavailable are both 0"),
        (
            {
                "autoscaling.enabled": True,
                "autoscaling.metrics": [{"type": "Resource"}],
                "autoscaling.minReplicas": 5,
            },
            "autoscaling.minReplicas is above autoscaling.maxReplicas",
        ),
        ({"podDisruptionBudget.minAvailable": 1}, "set exactly one of maxUnavailable"),
        ({"podDisruptionBudget.maxUnavailable": ""}, "set exactly one of maxUnavailable"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: Values, message: str) -> None:
    with pytest.raises(HelmError) as error:
        objects(nested(dict(values)))
    assert message in str(error.value)


def test_another_scheduler_is_fine_without_warming() -> None:
    assert objects(nested({"engine.extraArgs": ["--scheduler-cls=x"], "warming.enabled": False}))
