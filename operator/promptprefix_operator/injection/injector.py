"""The decision about one pod: what is added to it, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from promptprefix import annotations as marks
from promptprefix.annotations import InjectionResult
from promptprefix_operator.injection.access import Access, access_of
from promptprefix_operator.injection.additions import (
    SCHEDULER_ARGUMENTS,
    SCHEDULER_CLASS,
    additions,
)
from promptprefix_operator.injection.engine import Engine, find_engine
from promptprefix_operator.injection.kv_events import KvEvents, kv_events
from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_operator.injection.patch import (
    Operation,
    append,
    pointer,
    set_members,
)
from promptprefix_operator.injection.pod import MAX_CHARACTERS, JsonObject, Pod
from promptprefix_operator.injection.policy import (
    Case,
    has_plugin,
    has_sidecar,
    host_network,
    notes,
    refusal,
    shortfalls,
    taken_names,
    taken_port,
)
from promptprefix_operator.injection.pythonpath import pythonpath_operations
from promptprefix_operator.injection.quality import fitting_resources

_WINDOWS = "windows"


@dataclass(frozen=True)
class Injection:
    """operations: a JSON patch. sentences: what is missing, why, and the fix; no values."""

    operations: tuple[Operation, ...]
    result: InjectionResult
    sentences: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


def inject(pod: Mapping[str, object], namespace: str, options: InjectionOptions) -> Injection:
    """Decide about ``pod``, the JSON of its manifest. Never raises; nothing of it is logged."""
    try:
        read = Pod.model_validate(pod)
    except ValidationError as error:
        places = sorted({".".join(str(part) for part in each["loc"]) for each in error.errors()})
        return _nothing(None, f"the pod can't be read: {', '.join(places[:3])}.")
    return _decide(read, namespace, options)


def _decide(pod: Pod, namespace: str, options: InjectionOptions) -> Injection:
    metadata = pod.metadata
    if metadata.annotations.get(marks.INJECT) == "false":
        return _nothing(None, f"the annotation {marks.INJECT} declines it.")
    if metadata.labels.get(marks.INJECT) != "true":
        return _nothing(None, f'the label {marks.INJECT} is not "true".')
    if has_sidecar(pod):
        return Injection((), InjectionResult.HARD if has_plugin(pod) else InjectionResult.SOFT)
    if namespace not in options.namespaces:
        return _nothing(
            pod, f"the operator does not serve namespace {namespace}: add it to its namespaces."
        )
    if _is_windows(pod):
        return _nothing(pod, "the pod is for Windows, and the sidecar is for Linux.")
    if not pod.is_readable:
        return _nothing(
            pod,
            "commands and variables of the pod are too long to be read (together "
            f"{MAX_CHARACTERS} characters): keep them in ConfigMaps.",
        )
    taken = host_network(pod) or taken_names(pod) or taken_port(pod)
    if taken:
        return _nothing(pod, taken)
    engine = find_engine(pod)
    if isinstance(engine, str):
        return _nothing(pod, engine)
    return _extend(Case(pod, engine), options)


def _extend(case: Case, options: InjectionOptions) -> Injection:
    refused = refusal(case)
    access = access_of(case.engine)
    if refused or isinstance(access, str):
        return _nothing(case.pod, refused or str(access))
    missing = shortfalls(case)
    plugin = not missing
    events = kv_events(case, options, plugin=plugin)
    sentences = (*missing, *notes(case, access, plugin=plugin), *filter(None, [events.note]))
    sentences = tuple(_capitalised(sentence) for sentence in sentences)
    result = InjectionResult.HARD if plugin else InjectionResult.SOFT
    operations = (
        *_marks(case.pod, result, " ".join(sentences)),
        *_parts(case, access, options, events, plugin=plugin),
    )
    return Injection(operations, result, sentences)


def _parts(
    case: Case, access: Access, options: InjectionOptions, events: KvEvents, *, plugin: bool
) -> list[Operation]:
    spec = case.pod.spec
    added = additions(
        options,
        access.url,
        access.variables,
        plugin=plugin,
        resources=fitting_resources(case.pod, options.resources),
        events=events.sidecar,
    )
    operations = [
        *append("/spec/initContainers", len(spec.init_containers), added.init_containers),
        *append("/spec/volumes", len(spec.volumes), (*added.volumes, *events.volumes)),
    ]
    if not plugin:
        return operations
    return [
        *operations,
        *_engine_parts(
            case,
            (*added.engine_mounts, *events.engine_mounts),
            added.engine_variables,
            events.arguments,
        ),
    ]


def _engine_parts(
    case: Case,
    mounts: tuple[JsonObject, ...],
    variables: tuple[JsonObject, ...],
    arguments: tuple[str, ...],
) -> list[Operation]:
    engine, container = case.engine, case.engine.container
    path = pointer("spec", "containers", engine.index)
    baked = case.pod.metadata.annotations.get(marks.PYTHONPATH, "")
    paths = pythonpath_operations(path + "/env", container, engine.environment, baked)
    given = {variable.name for variable in container.env}
    new = [each for each in variables if each["name"] not in given]
    # PYTHONPATH first: where there is no env yet, it makes the list.
    present = len(container.env) + (1 if paths else 0)
    return [
        *append(path + "/volumeMounts", len(container.volume_mounts), mounts),
        *paths,
        *append(path + "/env", present, new),
        *_arguments(engine, path, arguments),
    ]


def _arguments(engine: Engine, path: str, more: tuple[str, ...]) -> list[Operation]:
    scheduler = () if SCHEDULER_CLASS in engine.command.text else SCHEDULER_ARGUMENTS
    container = engine.container
    name = "args" if container.args or not container.command else "command"
    present = len(container.args if name == "args" else container.command)
    return append(f"{path}/{name}", present, (*scheduler, *more))


def _nothing(pod: Pod | None, sentence: str) -> Injection:
    """Return a refusal; the pod is told unless it is None."""
    text = _capitalised(sentence)
    operations = () if pod is None else _marks(pod, InjectionResult.NONE, text)
    return Injection(tuple(operations), InjectionResult.NONE, (text,))


def _marks(pod: Pod, result: InjectionResult, message: str) -> list[Operation]:
    present = pod.metadata.annotations
    wanted = {marks.INJECTED: result.value}
    if message:
        wanted[marks.INJECTION_MESSAGE] = message
    changed = {name: value for name, value in wanted.items() if present.get(name) != value}
    path = pointer("metadata", "annotations")
    operations = set_members(path, len(present), changed)
    if not message and marks.INJECTION_MESSAGE in present:
        stale = path + pointer(marks.INJECTION_MESSAGE)
        operations.append({"op": "remove", "path": stale})
    return operations


def _is_windows(pod: Pod) -> bool:
    system = pod.spec.os.name if pod.spec.os else pod.spec.node_selector.get("kubernetes.io/os", "")
    return system == _WINDOWS


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
