"""A container's variables as the kubelet makes them, as far as the pod tells their values.

The kubelet replaces ``$(NAME)`` in values, commands and arguments: by variables of ``envFrom`` and
by those that stand earlier in ``env``. ``$$`` is one dollar, and an unknown reference stays as it
is. (``makeEnvironmentVariables`` of the kubelet, ``expansion.Expand``.)

Where a value comes from elsewhere (a Secret, the pod's address) a text holds a mark in its place,
so that it can be handed on without being known. References can multiply a text without end, so what
they add is bounded; beyond that they stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from promptprefix_operator.injection.pod import Container, JsonObject, Pod

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]{0,256}+)\)")
_UNKNOWN: Final = re.compile(r"\$\([A-Za-z_][-._A-Za-z0-9]*\)")
_MARK: Final = re.compile("\0([0-9]+)\0")
_CARRIED: Final = "PROMPTPREFIX_FROM_ENGINE_"
"""Before the name of a variable of the engine that the sidecar needs."""


MAX_ADDED_CHARS: Final = 131_072
"""What references may add to all texts of a pod."""


class Allowance:
    """Characters that references may still add."""

    def __init__(self, characters: int = MAX_ADDED_CHARS) -> None:
        self._left = characters

    def take(self, characters: int) -> bool:
        """Whether so many more are allowed; if so they are used up."""
        if characters > self._left:
            return False
        self._left -= characters
        return True


@dataclass(frozen=True)
class _Source:
    name: str
    value_from: JsonObject


@dataclass(frozen=True)
class Environment:
    """values: texts by variable. sources: what marks stand for. prefixes: those of ``envFrom``."""

    values: dict[str, str]
    sources: tuple[_Source, ...]
    prefixes: tuple[str, ...]
    allowance: Allowance = field(default_factory=Allowance, compare=False)

    def expand(self, text: str) -> str:
        """Return ``text`` with its references replaced, by marks where a value is not known."""
        added = sum(len(self.values.get(name, "")) for name in _REFERENCE.findall(text))
        return _REFERENCE.sub(self._replacement, text) if self.allowance.take(added) else text

    def get(self, name: str) -> str | None:
        """Return the value of a variable, to put it in a text."""
        value = self.values.get(name)
        return value if value is not None and self.allowance.take(len(value)) else None

    def may_define(self, name: str) -> bool:
        """Whether ``envFrom`` may hold a variable that ``env`` does not."""
        return name not in self.values and any(name.startswith(each) for each in self.prefixes)

    def definitions(self, name: str, text: str) -> list[JsonObject]:
        """Return entries of another container's ``env`` that give ``name`` the value of ``text``.

        Entries before the last one are what it refers to.
        """
        whole = _MARK.fullmatch(text)
        if whole is not None:
            return [{"name": name, "valueFrom": self.sources[int(whole[1])].value_from}]
        value, helpers = self.reference(text)
        return [*helpers, {"name": name, "value": value}]

    def reference(self, text: str) -> tuple[str, list[JsonObject]]:
        """Return ``text`` as a value for another container and the entries it refers to."""
        used = {int(index) for index in _MARK.findall(text)}
        helpers: list[JsonObject] = [
            {
                "name": f"{_CARRIED}{self.sources[index].name}",
                "valueFrom": self.sources[index].value_from,
            }
            for index in sorted(used)
        ]
        value = _MARK.sub(
            lambda match: f"$({_CARRIED}{self.sources[int(match[1])].name})",
            text.replace("$", "$$"),
        )
        return value, helpers

    def _replacement(self, match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return self.values.get(match[1], match[0])


def has_unknown(text: str) -> bool:
    """Whether ``text`` holds a reference that nothing in the pod resolves."""
    return _UNKNOWN.search(text) is not None


def environment_of(
    container: Container, pod: Pod, allowance: Allowance | None = None
) -> Environment:
    """Read the variables of ``container``."""
    allowance = allowance or Allowance()
    values: dict[str, str] = {}
    sources: list[_Source] = []
    for variable in container.env:
        if variable.value_from is None:
            values[variable.name] = Environment(values, (), (), allowance).expand(variable.value)
            continue
        known = pod.field(variable.value_from)
        if known is None:
            known = f"\0{len(sources)}\0"
            sources.append(_Source(variable.name, variable.value_from))
        values[variable.name] = known
    prefixes = tuple(source.prefix for source in container.env_from)
    return Environment(values, tuple(sources), prefixes, allowance)
