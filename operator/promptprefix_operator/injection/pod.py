"""What injection reads of a pod, from the JSON that admission sends."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]
"""A part of a manifest that is only copied or written."""

MAX_CHARACTERS: Final = 131_072
"""Containers with more are not read: anybody who may create pods could have us busy."""

_CHARACTERS_PER_ITEM: Final = 16
_MEMBER: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def _listed(value: object) -> object:
    """Read null as an empty list, as Kubernetes does."""
    return () if value is None else value


def _mapped(value: object) -> object:
    return {} if value is None else value


def _textual(value: object) -> object:
    """Read null as empty, and drop NUL: no process can get one, and references are marked by it."""
    if value is None:
        return ""
    return value.replace("\0", "") if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_textual)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
Members = Annotated[dict[str, str], BeforeValidator(_mapped)]
Opaque = Annotated[JsonObject, BeforeValidator(_mapped)]


class Part(BaseModel):
    """Part of a pod; fields that injection does not read are left out."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


class Variable(Part):
    """An entry of ``env``."""

    name: str
    value: Text = ""
    value_from: JsonObject | None = None


class VariableSource(Part):
    """An entry of ``envFrom``."""

    prefix: Text = ""


class Port(Part):
    """A port of a container."""

    container_port: int
    protocol: Text = "TCP"


class Mount(Part):
    """A mounted volume."""

    name: str
    mount_path: str
    read_only: bool | None = None
    sub_path: Text = ""
    sub_path_expr: Text = ""


class Volume(Part):
    """A volume; of its kind only whether it is an emptyDir is known."""

    name: str
    empty_dir: JsonObject | None = None


class Security(Part):
    """A ``securityContext``, of a pod or a container."""

    run_as_user: int | None = None


class Container(Part):
    """A container, of any kind."""

    name: str
    image: Text = ""
    command: Texts = ()
    args: Texts = ()
    env: Annotated[tuple[Variable, ...], BeforeValidator(_listed)] = ()
    env_from: Annotated[tuple[VariableSource, ...], BeforeValidator(_listed)] = ()
    ports: Annotated[tuple[Port, ...], BeforeValidator(_listed)] = ()
    volume_mounts: Annotated[tuple[Mount, ...], BeforeValidator(_listed)] = ()
    resources: Opaque = {}
    security_context: Annotated[Security, BeforeValidator(_mapped)] = Security()
    restart_policy: Text = ""

    @property
    def shown(self) -> str:
        """The name as messages quote it; longer ones are refused by Kubernetes."""
        return repr(self.name[:63])

    @property
    def length(self) -> int:
        """Characters of all that is read, with some for each item."""
        texts = (
            *(self.name, self.image, *self.command, *self.args),
            *(text for each in self.env for text in (each.name, each.value)),
            *(each.prefix for each in self.env_from),
            *(each.mount_path for each in self.volume_mounts),
        )
        items = len(texts) + len(self.ports) + 1
        return sum(map(len, texts)) + _CHARACTERS_PER_ITEM * items

    def variable(self, name: str) -> Variable | None:
        """Return the definition of a variable that counts: the last one."""
        return next((each for each in reversed(self.env) if each.name == name), None)


class OperatingSystem(Part):
    """The system that a pod asks for."""

    name: Text = ""


class Specification(Part):
    """A pod's ``spec``."""

    containers: Annotated[tuple[Container, ...], BeforeValidator(_listed)] = ()
    init_containers: Annotated[tuple[Container, ...], BeforeValidator(_listed)] = ()
    ephemeral_containers: Annotated[tuple[Container, ...], BeforeValidator(_listed)] = ()
    volumes: Annotated[tuple[Volume, ...], BeforeValidator(_listed)] = ()
    host_network: bool | None = None
    security_context: Annotated[Security, BeforeValidator(_mapped)] = Security()
    os: OperatingSystem | None = None
    node_selector: Members = {}
    resources: Opaque = {}


class Metadata(Part):
    """A pod's ``metadata``."""

    labels: Members = {}
    annotations: Members = {}


class Pod(Part):
    """A pod as it is created."""

    metadata: Metadata = Metadata()
    spec: Specification

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers; their names share one space."""
        spec = self.spec
        return (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)

    @property
    def is_readable(self) -> bool:
        """Whether the containers are short enough to be read in little time."""
        left = MAX_CHARACTERS
        for container in self.all_containers:
            left -= container.length
            if left < 0:
                return False
        return True

    def field(self, source: JsonObject) -> str | None:
        """Return what an entry's ``valueFrom`` takes from the pod's own labels and annotations."""
        reference = source.get("fieldRef")
        path = reference.get("fieldPath") if isinstance(reference, dict) else None
        match = _MEMBER.fullmatch(path) if isinstance(path, str) else None
        if match is None:
            return None
        members = getattr(self.metadata, match[1])
        return str(members.get(match[2], ""))
