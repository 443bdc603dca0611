"""Which container of a pod is the engine, and what the pod says about it."""

from __future__ import annotations

from dataclasses import dataclass

from promptprefix import annotations as marks
from promptprefix_operator.injection.command import Command, Start, command_of
from promptprefix_operator.injection.environment import Allowance, Environment, environment_of
from promptprefix_operator.injection.flags import Flags
from promptprefix_operator.injection.pod import Container, Pod

DEFAULT_PORT = 8000
"""vLLM's own."""

_MAX_NAMED = 4


@dataclass(frozen=True)
class Engine:
    """index: of its container among the pod's. sure: it is known to run vLLM's server."""

    index: int
    container: Container
    environment: Environment
    command: Command
    sure: bool = True

    @property
    def name(self) -> str:
        """Name of the container, as messages quote it."""
        return self.container.shown

    @property
    def flags(self) -> Flags:
        """Options of vLLM."""
        return self.command.flags

    @property
    def port(self) -> int | None:
        """Port of its API; None if the pod doesn't tell."""
        text = self.flags.value("port")
        if text is not None:
            return int(text) if text.isascii() and text.isdigit() and int(text) < 65_536 else None
        ports = [port for port in self.container.ports if port.protocol == "TCP"]
        start, words = self.command.start, self.command.words
        hidden = start is Start.OTHER or (start is Start.IMAGE and not words) or not self.sure
        if hidden and len(ports) == 1:
            return ports[0].container_port
        return DEFAULT_PORT


def find_engine(pod: Pod) -> Engine | str:
    """Return the pod's engine, or why there is none or more than one."""
    allowance = Allowance()
    engines = [_engine(pod, index, allowance) for index in range(len(pod.spec.containers))]
    wanted = pod.metadata.annotations.get(marks.CONTAINER)
    if wanted is not None:
        named = [each for each in engines if each.container.name == wanted]
        return named[0] if named else f"the annotation {marks.CONTAINER} names no container."
    runs = [each for each in engines if each.command.start in (Start.SERVER, Start.SCRIPT)]
    by_image = [
        each
        for each in engines
        if each.command.start is Start.IMAGE and "vllm" in _image_name(each.container.image)
    ]
    for candidates in (runs, by_image):
        if len(candidates) > 1:
            names = ", ".join(each.name for each in candidates[:_MAX_NAMED])
            return (
                f"the containers {names} all look like vLLM: "
                f"name one with the annotation {marks.CONTAINER}."
            )
        if candidates:
            return candidates[0]
    if len(engines) == 1 and engines[0].command.start is Start.IMAGE:
        only = engines[0]
        return Engine(only.index, only.container, only.environment, only.command, sure=False)
    return (
        "no container visibly runs vLLM's server (vllm serve …): "
        f"name the one that does with the annotation {marks.CONTAINER}."
    )


def _engine(pod: Pod, index: int, allowance: Allowance) -> Engine:
    container = pod.spec.containers[index]
    environment = environment_of(container, pod, allowance)
    return Engine(index, container, environment, command_of(container, environment))


def _image_name(image: str) -> str:
    """Return an image's repository without its registry, tag and digest."""
    repository = image.partition("@")[0]
    head, slash, last = repository.rpartition("/")
    path = f"{head}{slash}{last.partition(':')[0]}"
    first, slash, rest = path.partition("/")
    is_registry = slash and ("." in first or ":" in first or first == "localhost")
    return rest if is_registry else path
