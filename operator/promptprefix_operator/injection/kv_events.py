"""The engine's KV events: how an injected sidecar comes to read them.

They have no authentication, so only a socket in a volume of the pod is made here. A Unix socket
lets in its owner alone: the sidecar then runs as the engine's user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from posixpath import dirname
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from promptprefix import annotations as marks
from promptprefix_operator.injection.additions import BLOCKS_PORT, KV_EVENTS, SidecarEvents
from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_operator.injection.pod import JsonObject, Mount
from promptprefix_operator.injection.policy import Case

FOLDER: Final = "/run/promptprefix/kv-events"
FLAG: Final = "--kv-events-config"
TOPIC: Final = "kv"

_TCP: Final = re.compile(r"tcp://\*:([0-9]{1,5})")
_IPC: Final = re.compile(r"ipc://(/[^\0]{1,106})")
_OWN_PATHS: Final = ("/tmp", "/run/promptprefix")  # noqa: S108 - where the sidecar has its own


class Config(BaseModel):
    """vLLM's ``--kv-events-config``, as far as it says where events go; defaults are vLLM's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""

    @property
    def published(self) -> bool:
        """Whether events leave the engine."""
        return self.enable_kv_cache_events and self.publisher in (None, "zmq")


OWN_CONFIG: Final = Config(
    enable_kv_cache_events=True,
    publisher="zmq",
    endpoint=f"ipc://{FOLDER}/events",
    replay_endpoint=f"ipc://{FOLDER}/replay",
    topic=TOPIC,
)


@dataclass(frozen=True)
class KvEvents:
    """What a pod gets for its events: nothing by default.

    arguments, engine_mounts: of the engine. note: why an annotation that asks for events is not
    followed.
    """

    sidecar: SidecarEvents | None = None
    arguments: tuple[str, ...] = ()
    engine_mounts: tuple[JsonObject, ...] = ()
    volumes: tuple[JsonObject, ...] = ()
    note: str = ""


def kv_events(case: Case, options: InjectionOptions, *, plugin: bool) -> KvEvents:
    """Return what is added. ``plugin``: the engine gets arguments of ours."""
    asked = case.pod.metadata.annotations.get(marks.KV_EVENTS) == "true"
    given = case.engine.flags.value("kv-events-config")
    if given is None:
        found = _made(case, options, plugin=plugin) if asked else KvEvents()
    else:
        found = _read(case, options, given)
    return found if asked else replace(found, note="")


def _made(case: Case, options: InjectionOptions, *, plugin: bool) -> KvEvents:
    """Have the engine publish at a socket of ours."""
    if not plugin or not case.engine.command.extensible:
        return _refused("the arguments of the engine can't be extended")
    user = _user(case, options)
    if isinstance(user, str):
        return _refused(user)
    config = OWN_CONFIG.model_dump()
    mount = {"name": KV_EVENTS, "mountPath": FOLDER}
    shared = ({**mount, "readOnly": True},)
    return KvEvents(
        _sidecar(case, OWN_CONFIG, OWN_CONFIG.endpoint, OWN_CONFIG.replay_endpoint, shared, user),
        arguments=(FLAG, json.dumps(config, separators=(",", ":"))),
        engine_mounts=(mount,),
        volumes=({"name": KV_EVENTS, "emptyDir": {"sizeLimit": "1Mi"}},),
    )


def _read(case: Case, options: InjectionOptions, text: str) -> KvEvents:
    """Read what the engine publishes by itself, if the sidecar can reach it."""
    try:
        config = Config.model_validate_json(text)
    except ValidationError:
        return _refused(f"its {FLAG} can't be read")
    if not config.published:
        return _refused(f"its {FLAG} switches them off")
    rank = _rank(case)
    if rank is None:
        return _refused("which data-parallel rank the engine is can't be told")
    endpoint = _dialled(config.endpoint, rank)
    if endpoint is None:
        return _refused(f"its {FLAG} publishes neither at ipc:///folder/socket nor at tcp://*:port")
    replay = _dialled(config.replay_endpoint or "", rank)
    mounts: list[Mount] = []
    user: int | None = None
    for socket in _sockets(endpoint, replay):
        mount = _mount_of(case, socket)
        if mount is None:
            return _refused("its socket is in no emptyDir of its own that the sidecar could mount")
        mounts += [] if mount in mounts else [mount]
    if mounts:
        owner = _user(case, options)
        if isinstance(owner, str):
            return _refused(owner)
        user = owner
    shared = tuple(
        {"name": each.name, "mountPath": each.mount_path, "readOnly": True} for each in mounts
    )
    return KvEvents(_sidecar(case, config, endpoint, replay, shared, user))


def _refused(why: str) -> KvEvents:
    return KvEvents(note=f"KV events are not read ({marks.KV_EVENTS}): {why}.")


def _rank(case: Case) -> int | None:
    """Return the engine's data-parallel rank; None if the pod doesn't tell."""
    flags = case.engine.flags
    text = flags.value("data-parallel-rank")
    if text is not None:
        return int(text) if text.isascii() and text.isdigit() else None
    return 0 if flags.value("data-parallel-size") in (None, "1") else None


def _dialled(endpoint: str, rank: int) -> str | None:
    """Return where the sidecar reaches what the engine binds: each rank has a port of its own."""
    port = _TCP.fullmatch(endpoint)
    if port is not None:
        return f"tcp://127.0.0.1:{int(port[1]) + rank}"
    return endpoint if _IPC.fullmatch(endpoint) else None


def _sockets(*endpoints: str | None) -> Iterator[str]:
    for endpoint in endpoints:
        path = _IPC.fullmatch(endpoint or "")
        if path is not None:
            yield path[1]


def _mount_of(case: Case, socket: str) -> Mount | None:
    """Return the engine's mount that holds the socket, if it is an emptyDir that can be shared."""
    shared = {each.name for each in case.pod.spec.volumes if each.empty_dir is not None}
    holding = [
        each
        for each in case.engine.container.volume_mounts
        if f"{dirname(socket)}/".startswith(f"{each.mount_path.rstrip('/')}/")
    ]
    mount = max(holding, key=lambda each: len(each.mount_path), default=None)
    if mount is None or mount.name not in shared or mount.sub_path or mount.sub_path_expr:
        return None
    path = f"{mount.mount_path.rstrip('/')}/"
    taken = any(path.startswith(f"{own}/") or f"{own}/".startswith(path) for own in _OWN_PATHS)
    return None if taken else mount


def _user(case: Case, options: InjectionOptions) -> int | str | None:
    """Return the engine's user, None where the cluster chooses; or why the sidecar can't be it."""
    context = case.engine.container.security_context
    user = case.pod.spec.security_context.run_as_user
    user = context.run_as_user if context.run_as_user is not None else user
    if user == 0:
        return "the engine runs as root, whose socket the sidecar may not open: set runAsUser"
    if user is None and options.run_as_user is not None:
        return "the pod doesn't say as which user the engine runs: set runAsUser"
    return user


def _sidecar(
    case: Case,
    config: Config,
    endpoint: str,
    replay: str | None,
    mounts: tuple[JsonObject, ...],
    user: int | None,
) -> SidecarEvents:
    port = _blocks_port(case, endpoint, replay)
    values = {
        "KV_EVENTS_ENDPOINT": endpoint,
        "KV_EVENTS_REPLAY_ENDPOINT": replay,
        "KV_EVENTS_TOPIC": config.topic,
        "BLOCKS_PORT": str(port),
    }
    variables = tuple(
        {"name": f"PROMPTPREFIX_{name}", "value": value} for name, value in values.items() if value
    )
    return SidecarEvents(variables, port, mounts, user)


def _blocks_port(case: Case, *endpoints: str | None) -> int:
    """Return where the sidecar tells the names of blocks: nowhere if others use the port."""
    taken = {
        port.container_port
        for container in case.pod.all_containers
        for port in container.ports
        if port.protocol == "TCP"
    }
    dialled = any(each and each.endswith(f":{BLOCKS_PORT}") for each in endpoints)
    return 0 if dialled or BLOCKS_PORT in {*taken, case.engine.port} else BLOCKS_PORT
