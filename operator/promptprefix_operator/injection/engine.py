"""Which container of a pod is the engine, and what the pod says about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from promptprefix import annotations as marks
from promptprefix_operator.injection.command import Command, Start, command_of
from promptprefix_operator.injection.environment import Allowance, Environment, environment_of
from promptprefix_operator.injection.flags import Flags
from promptprefix_operator.injection.pod import Container, Pod

DEFAULT_PORT = 8000
"""vLLM's own."""

_MAX_NAMED = 4
_ENGINE_IMAGE: Final = re.compile(
    r"vllm([-_.](cpu|cuda|gpu|rocm|xpu|hpu|tpu|gaudi|neuron|ascend|dev|[a-z0-9._-]*openai)"
    r"([-_.0-9][a-z0-9._-]*)?)?"
)
_COMPANION: Final = re.compile(
    r"(exporter|metrics|router|proxy|gateway|sidecar|client|bench(mark)?|operator|controller)s?"
)
"""Parts of the names of images that go with vLLM and don't run it."""


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
        if each.command.start is Start.IMAGE and is_engine_image(each.container.image)
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
        "no container visibly runs vLLM's server, by its command (vllm serve …) or its image: "
        f"name the one that does with the annotation {marks.CONTAINER}."
    )


def _engine(pod: Pod, index: int, allowance: Allowance) -> Engine:
    container = pod.spec.containers[index]
    environment = environment_of(container, pod, allowance)
    return Engine(index, container, environment, command_of(container, environment))


def is_engine_image(image: str) -> bool:
    """Whether an image is named as those that run vLLM's server; registry and path don't count."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()
    parts = re.split(r"[-_.]", name)
    return bool(_ENGINE_IMAGE.fullmatch(name)) and not any(map(_COMPANION.fullmatch, parts))
