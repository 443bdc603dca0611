"""Why a pod gets nothing, why only the sidecar, and what its owner should know.

Each rule is a pure function that returns a sentence, or nothing where it does not apply. Sentences
name containers, options and fixes, and never a value of the pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from promptprefix import annotations as marks
from promptprefix_operator.injection.access import (
    API_KEY,
    Access,
    api_key,
    only_local,
    speaks_tls,
)
from promptprefix_operator.injection.additions import (
    CONTAINERS,
    ENGINE_MOUNTS,
    KEY_FILE,
    KEY_FILE_VARIABLE,
    PLUGIN,
    PORT,
    SCHEDULER_CLASS,
    VOLUMES,
)
from promptprefix_operator.injection.command import Start
from promptprefix_operator.injection.engine import Engine
from promptprefix_operator.injection.pod import Container, Mount, Pod
from promptprefix_operator.injection.pythonpath import HELPER

_FLAG: Final = f"--scheduler-cls {SCHEDULER_CLASS}"
_OLD: Final = re.compile(r"(?:.*/)?vllm/vllm-openai[^/:]*:v?0\.[0-7](\.[^/]*)?")
"""The project's own images of releases that do not know --scheduler-cls."""


@dataclass(frozen=True)
class Case:
    """A pod with its engine."""

    pod: Pod
    engine: Engine


Rule = Callable[[Case], str]


def refusal(case: Case) -> str:
    """Return why nothing is added; empty if something is."""
    return next((text for rule in _REFUSALS if (text := rule(case))), "")


def shortfalls(case: Case) -> tuple[str, ...]:
    """Return why the plugin is not loaded; empty if it is."""
    return tuple(text for rule in _SHORTFALLS if (text := rule(case)))


def notes(case: Case, access: Access, *, plugin: bool) -> tuple[str, ...]:
    """Return what the pod's owner should know although it works."""
    found = tuple(text for rule in _NOTES if (text := rule(case)))
    if plugin and case.engine.command.sets_pythonpath:
        found += (
            f"The script of container {case.engine.name} sets PYTHONPATH: /opt/promptprefix must "
            "stay in it.",
        )
    return found


def taken_names(pod: Pod) -> str:
    """Return which of our names others use."""
    containers = {each.name for each in pod.all_containers} & set(CONTAINERS)
    volumes = {each.name for each in pod.spec.volumes} & set(VOLUMES)
    if not containers and not volumes:
        return ""
    names = ", ".join(sorted({*containers, *volumes}))
    return f"the pod has containers or volumes with names that injection needs: rename {names}."


def host_network(pod: Pod) -> str:
    """Return why a pod on the node's own network gets nothing; empty if it is on the pods'."""
    if not pod.spec.host_network:
        return ""
    return (
        f"the pod uses the node's network, where two sidecars collide on port {PORT} and "
        "NetworkPolicies don't hold: drop hostNetwork."
    )


def taken_port(pod: Pod) -> str:
    """Return which container uses the sidecar's port."""
    for container in pod.all_containers:
        ports = [port.container_port for port in container.ports if port.protocol == "TCP"]
        if PORT in ports:
            return f"container {container.shown} uses port {PORT}, which the sidecar needs."
    return ""


def _port(case: Case) -> str:
    if case.engine.port == PORT:
        return f"vLLM listens on port {PORT}, which the sidecar needs: give it another --port."
    return ""


def _other_server(case: Case) -> str:
    image, words = case.engine.container.image, case.engine.command.words
    if "huggingfaceserver" in image or "huggingfaceserver" in words:
        return "KServe's huggingfaceserver is not vLLM's own server: use KServe's vLLM runtime."
    if case.engine.flags.switch("grpc"):
        return "vLLM serves gRPC only (--grpc): the sidecar needs its HTTP API."
    return ""


def _follower(case: Case) -> str:
    flags, name = case.engine.flags, case.engine.name
    if flags.switch("headless"):
        return f"container {name} runs without an API (--headless); only the leader is injected."
    rank = flags.value("node-rank")
    if rank is not None and rank != "0":
        return f"container {name} is not known to be the first of its nodes (--node-rank 0)."
    return ""


def _socket(case: Case) -> str:
    if case.engine.flags.value("uds"):
        return "vLLM listens on a Unix socket (--uds): the sidecar needs a port."
    return ""


def _client_certificates(case: Case) -> str:
    if speaks_tls(case.engine) and case.engine.flags.value("ssl-cert-reqs") not in (None, "0", "1"):
        return "vLLM asks for client certificates (--ssl-cert-reqs): the sidecar has none."
    return ""


def _no_cache(case: Case) -> str:
    if case.engine.flags.switch("enable-prefix-caching") is False:
        return "prefix caching is off (--no-enable-prefix-caching): there is nothing to keep warm."
    return ""


def _ranks(case: Case) -> str:
    if not _is_parallel(case.engine, "data-parallel-size"):
        return ""
    flags = case.engine.flags
    external = flags.switch("data-parallel-external-lb") or flags.value("data-parallel-rank")
    one_local = flags.value("data-parallel-size-local") == "1" and flags.switch(
        "data-parallel-hybrid-lb"
    )
    if not external and not one_local:
        return (
            "vLLM runs several data-parallel ranks behind one port (--data-parallel-size): a "
            "warm-up would reach one of them only."
        )
    return ""


_REFUSALS: Final[tuple[Rule, ...]] = (
    _other_server,
    _follower,
    _socket,
    _port,
    _client_certificates,
    _no_cache,
    _ranks,
)


def _old_engine(case: Case) -> str:
    variable = case.engine.environment.values.get("VLLM_USE_V1", "").strip()
    if variable == "0":
        return "VLLM_USE_V1=0 selects an engine without the plugin's interface: remove it."
    if _OLD.fullmatch(case.engine.container.image.partition("@")[0]):
        return "this release of vLLM does not know --scheduler-cls: use a newer image."
    return ""


def _scheduler(case: Case) -> str:
    named = case.engine.flags.value("scheduler-cls")
    if named is None or named == SCHEDULER_CLASS:
        return ""
    return f"container {case.engine.name} has a --scheduler-cls of its own."


def _fixed_arguments(case: Case) -> str:
    engine = case.engine
    command, name = engine.command, engine.name
    if SCHEDULER_CLASS in command.text:
        return ""
    if not engine.sure:
        return (
            f"container {name} is not known to run vLLM's server: if its image does, name it with "
            f"the annotation {marks.CONTAINER}."
        )
    if command.extensible:
        return ""
    if command.start is Start.SCRIPT:
        return (
            f"container {name} starts vLLM in a shell script, which can't be extended: put {_FLAG} "
            "there yourself."
        )
    if command.start is Start.IMAGE and not command.words:
        return f"container {name} has no args, and the image's own can't be extended: give args."
    if command.start is Start.OTHER:
        return (
            f"container {name} runs a program that may not pass arguments on to vLLM: put {_FLAG} "
            "there yourself."
        )
    return f"the arguments of container {name} end with '--': put {_FLAG} before it yourself."


def _isolated(case: Case) -> str:
    if case.engine.command.isolated:
        return f"Python of container {case.engine.name} ignores PYTHONPATH: drop its -E or -I."
    return ""


def _parallel(case: Case) -> str:
    if _is_parallel(case.engine, "data-parallel-size"):
        return "The plugin does not support data parallelism (--data-parallel-size)."
    for name in ("decode-context-parallel-size", "prefill-context-parallel-size"):
        if _is_parallel(case.engine, name):
            return f"The plugin does not support context parallelism (--{name})."
    return ""


def _mounts(case: Case) -> str:
    kinds = {volume.name: volume.empty_dir is not None for volume in case.pod.spec.volumes}
    for _, path in ENGINE_MOUNTS:
        if any(_clashes(mount, path, kinds) for mount in case.engine.container.volume_mounts):
            return f"container {case.engine.name} has a mount in the way of {path}: move it."
    return ""


def _clashes(mount: Mount, path: str, kinds: Mapping[str, bool]) -> bool:
    """Whether ``path`` can't be mounted beside ``mount``.

    Within another mount the folder must first be made there, which works in an emptyDir only.
    """
    other = mount.mount_path.rstrip("/")
    if other == path or other.startswith(f"{path}/"):
        return True
    if not path.startswith(f"{other}/"):
        return False
    return bool(mount.read_only) or not kinds.get(mount.name, False)


def _variables(case: Case) -> str:
    values = case.engine.environment.values
    if values.get(KEY_FILE_VARIABLE, KEY_FILE) != KEY_FILE:
        return f"container {case.engine.name} sets {KEY_FILE_VARIABLE} itself: remove it."
    if HELPER in values:
        return f"container {case.engine.name} sets {HELPER} itself: remove it."
    return ""


_SHORTFALLS: Final[tuple[Rule, ...]] = (
    _old_engine,
    _scheduler,
    _fixed_arguments,
    _isolated,
    _parallel,
    _mounts,
    _variables,
)


def _config_file(case: Case) -> str:
    if case.engine.flags.words("config") is not None:
        return (
            "What --config sets is not seen: give --port, --api-key, TLS and --scheduler-cls as "
            "arguments if it does."
        )
    return ""


def _unreachable(case: Case) -> str:
    if only_local(case.engine):
        return "vLLM listens on loopback only (--host): the router can't reach it."
    if speaks_tls(case.engine):
        return "vLLM serves TLS: its prefixes are kept warm, and the router leaves the pod out."
    return ""


def _unseen_key(case: Case) -> str:
    engine = case.engine
    if not api_key(engine) and engine.environment.may_define(API_KEY):
        return f"If envFrom sets {API_KEY}, set it in env as well, so that the sidecar gets it."
    return ""


_NOTES: Final[tuple[Rule, ...]] = (_config_file, _unreachable, _unseen_key)


def _is_parallel(engine: Engine, name: str) -> bool:
    return engine.flags.value(name) not in (None, "1")


def has_sidecar(pod: Pod) -> bool:
    """Whether a pod has our sidecar already, from here or from a chart."""
    return any(_is_sidecar(container) for container in pod.spec.init_containers)


def has_plugin(pod: Pod) -> bool:
    """Whether a pod has our plugin already."""
    return any(container.name == PLUGIN for container in pod.spec.init_containers)


def _is_sidecar(container: Container) -> bool:
    from_us = container.variable("PROMPTPREFIX_CONTROL_URL") is not None
    return container.name == CONTAINERS[-1] and container.restart_policy == "Always" and from_us
