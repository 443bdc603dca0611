"""What is added to a pod: containers, volumes, and the engine's mounts, variables and arguments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_operator.injection.pod import JsonObject

PLUGIN: Final = "promptprefix-plugin"
KEY: Final = "promptprefix-key"
SIDECAR: Final = "promptprefix-sidecar"
CONTAINERS: Final = (PLUGIN, KEY, SIDECAR)

_CA: Final = "promptprefix-ca"
_TOKEN: Final = "promptprefix-token"  # noqa: S105 - the name of a volume
_TMP: Final = "promptprefix-tmp"
KV_EVENTS: Final = "promptprefix-kv-events"
VOLUMES: Final = (PLUGIN, KEY, _CA, _TOKEN, _TMP, KV_EVENTS)

PLUGIN_PATH: Final = "/opt/promptprefix"
KEY_PATH: Final = "/run/promptprefix/key"
KEY_FILE: Final = f"{KEY_PATH}/key"
_CA_PATH: Final = "/run/promptprefix/ca"
_TOKEN_PATH: Final = "/run/promptprefix/token"  # noqa: S105 - a folder

KEY_FILE_VARIABLE: Final = "PROMPTPREFIX_KEY_FILE"
CONTROL_URL_VARIABLE: Final = "PROMPTPREFIX_CONTROL_URL"
POD_IP_VARIABLE: Final = "PROMPTPREFIX_POD_IP"
SCHEDULER_CLASS: Final = "promptprefix_vllm.scheduler.scheduler_class"
SCHEDULER_ARGUMENTS: Final = ("--scheduler-cls", SCHEDULER_CLASS)

PORT: Final = 8090
BLOCKS_PORT: Final = 8091
"""Where routers read the names of cached blocks."""
AUDIENCE: Final = "promptprefix.dev/control"

ENGINE_MOUNTS: Final = ((PLUGIN, PLUGIN_PATH), (KEY, KEY_PATH))


@dataclass(frozen=True)
class Additions:
    """Lists to append; ``engine_…`` belong to the engine's container."""

    init_containers: tuple[JsonObject, ...]
    volumes: tuple[JsonObject, ...]
    engine_mounts: tuple[JsonObject, ...] = ()
    engine_variables: tuple[JsonObject, ...] = ()


@dataclass(frozen=True)
class SidecarEvents:
    """What a sidecar that reads KV events has besides.

    blocks_port: where it tells the names of cached blocks; 0 if nowhere. user: instead of the one
    in the options.
    """

    variables: tuple[JsonObject, ...] = ()
    blocks_port: int = 0
    mounts: tuple[JsonObject, ...] = ()
    user: int | None = None


def additions(
    options: InjectionOptions,
    engine_url: str,
    variables: Sequence[JsonObject] = (),
    *,
    plugin: bool,
    resources: JsonObject | None = None,
    events: SidecarEvents | None = None,
) -> Additions:
    """Return what a pod gets.

    engine_url: a value of the sidecar's environment, which may refer to `POD_IP_VARIABLE`.
    variables: further entries of that environment, after all others.
    plugin: whether the engine loads the pin plugin; PYTHONPATH and arguments are not told here.
    resources: of each container, instead of those of ``options``; empty for none.
    events: how the sidecar reads the engine's KV events; None if it doesn't.
    """
    resources = options.resources if resources is None else resources
    sidecar = _sidecar(options, resources, engine_url, variables)
    containers = [_key(options, resources), _reading(sidecar, events or SidecarEvents())]
    volumes = [_KEY_VOLUME, *_SIDECAR_VOLUMES]
    if not plugin:
        return Additions(tuple(containers), _copies(volumes))
    return Additions(
        (_plugin(options, resources), *containers),
        _copies([{"name": PLUGIN, "emptyDir": {"sizeLimit": "16Mi"}}, *volumes]),
        tuple(_mount(name, path) for name, path in ENGINE_MOUNTS),
        ({"name": KEY_FILE_VARIABLE, "value": KEY_FILE},),
    )


def _reading(sidecar: JsonObject, events: SidecarEvents) -> JsonObject:
    return {
        **sidecar,
        "env": [*sidecar["env"], *events.variables],
        "ports": [*sidecar["ports"], *_blocks_ports(events.blocks_port)],
        "securityContext": {**sidecar["securityContext"], **_user(events.user)},
        "volumeMounts": [*sidecar["volumeMounts"], *_copies(events.mounts)],
    }


def _blocks_ports(port: int) -> list[JsonObject]:
    return [{"name": "blocks", "containerPort": port, "protocol": "TCP"}] if port else []


_KEY_VOLUME: Final = {"name": KEY, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
_TOKEN_SOURCE: Final = {
    "serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 3600}
}
_SIDECAR_VOLUMES: Final[tuple[JsonObject, ...]] = (
    # The pod may start before the operator has filled the ConfigMap in.
    {"name": _CA, "configMap": {"name": "promptprefix-ca", "optional": True}},
    {"name": _TOKEN, "projected": {"sources": [_TOKEN_SOURCE]}},
    {"name": _TMP, "emptyDir": {}},
)


def _copies(parts: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    return tuple(copy.deepcopy(part) for part in parts)


def _mount(name: str, path: str, *, read_only: bool = True) -> JsonObject:
    mount: JsonObject = {"name": name, "mountPath": path}
    return {**mount, "readOnly": True} if read_only else mount


def _container(
    name: str, image: str, options: InjectionOptions, resources: JsonObject
) -> JsonObject:
    container: JsonObject = {
        "name": name,
        "image": image,
        "imagePullPolicy": options.pull_policy,
        "securityContext": {
            "runAsNonRoot": True,
            **_user(options.run_as_user),
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {**container, "resources": copy.deepcopy(resources)} if resources else container


def _user(user: int | None) -> JsonObject:
    return {} if user is None else {"runAsUser": user, "runAsGroup": user}


def _plugin(options: InjectionOptions, resources: JsonObject) -> JsonObject:
    return {
        **_container(PLUGIN, options.plugin_image, options, resources),
        "volumeMounts": [_mount(PLUGIN, "/plugin", read_only=False)],
    }


def _key(options: InjectionOptions, resources: JsonObject) -> JsonObject:
    return {
        **_container(KEY, options.sidecar_image, options, resources),
        "args": ["init-key"],
        "env": [{"name": KEY_FILE_VARIABLE, "value": KEY_FILE}],
        "volumeMounts": [_mount(KEY, KEY_PATH, read_only=False)],
    }


def _sidecar(
    options: InjectionOptions,
    resources: JsonObject,
    engine_url: str,
    variables: Sequence[JsonObject],
) -> JsonObject:
    return {
        **_container(SIDECAR, options.sidecar_image, options, resources),
        "restartPolicy": "Always",
        "env": [
            {"name": CONTROL_URL_VARIABLE, "value": options.control_url},
            {"name": "PROMPTPREFIX_CA_FILE", "value": f"{_CA_PATH}/ca.crt"},
            {"name": "PROMPTPREFIX_TOKEN_FILE", "value": f"{_TOKEN_PATH}/token"},
            {"name": KEY_FILE_VARIABLE, "value": KEY_FILE},
            {"name": POD_IP_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "PROMPTPREFIX_ENGINE_URL", "value": engine_url},
            {"name": "PROMPTPREFIX_READY_TIMEOUT_S", "value": f"{options.ready_timeout_s:.15g}"},
            {"name": "PROMPTPREFIX_WARM_CHUNK_TOKENS", "value": str(options.warm_chunk_tokens)},
            *variables,
        ],
        "ports": [{"name": "warming", "containerPort": PORT, "protocol": "TCP"}],
        # A starved node answers late: that must not take a serving pod out of service.
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "warming"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "warming"},
            "periodSeconds": 20,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "volumeMounts": [
            _mount(KEY, KEY_PATH),
            _mount(_CA, _CA_PATH),
            _mount(_TOKEN, _TOKEN_PATH),
            _mount(_TMP, "/tmp", read_only=False),  # noqa: S108 - the container's own
        ],
    }
