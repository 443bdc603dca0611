"""How a container starts vLLM, and whether its arguments can be extended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from posixpath import basename
from typing import Final

from promptprefix_operator.injection.environment import Environment
from promptprefix_operator.injection.flags import Flags, flags_of
from promptprefix_operator.injection.pod import Container
from promptprefix_operator.injection.shell import POSITIONAL, assigned_names, server_words

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_SCRIPT_FLAG: Final = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_BARE_SCRIPT_FLAG: Final = re.compile(r"-[eiluvx]{0,4}c")
"""The same without a shell before it; vLLM's own -cc, -dcp and -pcp are none."""
_ISOLATED: Final = re.compile(r"-[A-Za-z]*[EI][A-Za-z]*")
_MODULES: Final = frozenset(
    {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "vllm.entrypoints.cli"}
)


class Start(StrEnum):
    """How a container is started."""

    SERVER = "server"
    """The command names vLLM's server."""
    IMAGE = "image"
    """The image's own entry point."""
    SCRIPT = "script"
    """A shell script in the pod names vLLM's server."""
    OTHER = "other"
    """A program that may be anything."""


@dataclass(frozen=True)
class Command:
    """start: how the container is started. words: vLLM's arguments, references resolved.

    extensible: whether an argument at the end reaches vLLM.
    isolated: Python is told not to look at PYTHONPATH.
    sets_pythonpath: a script sets PYTHONPATH by itself.
    text: everything that was given, to look for a name.
    """

    start: Start
    words: tuple[str, ...]
    extensible: bool
    isolated: bool = False
    sets_pythonpath: bool = False
    text: str = ""

    @cached_property
    def flags(self) -> Flags:
        """Options of vLLM."""
        return flags_of(self.words)


def command_of(container: Container, environment: Environment) -> Command:
    """Read a container's command and arguments."""
    words = [environment.expand(word) for word in (*container.command, *container.args)]
    text = "\n".join(words)
    server = _server(words)
    if server is not None:
        tail = tuple(words[server:])
        isolated = any(_ISOLATED.fullmatch(word) for word in words[: server - 1])
        return Command(Start.SERVER, tail, "--" not in tail, isolated=isolated, text=text)
    script = _script(words)
    if script is not None:
        return _scripted(words, script, environment, text)
    if container.command:
        return Command(Start.OTHER, tuple(words), extensible=False, text=text)
    tail = tuple(words[1:] if words[:1] == ["serve"] else words)
    # Arguments replace those of the image, so without any in the pod there is nothing to extend.
    return Command(Start.IMAGE, tail, bool(words) and "--" not in tail, text=text)


def _server(words: Sequence[str]) -> int | None:
    """Return where vLLM's arguments begin."""
    for index, (word, following) in enumerate(pairwise(words)):
        if basename(word) == "vllm" and following == "serve":
            return index + 2
        if word == "-m" and following in _MODULES:
            behind = index + 2
            return behind + 1 if words[behind : behind + 1] == ["serve"] else behind
    return None


def _script(words: Sequence[str]) -> int | None:
    """Return where the script of ``sh -c`` stands; an image's entry point may be the shell."""
    shell = next((i for i, word in enumerate(words) if basename(word) in _SHELLS), None)
    if shell is None:
        return 1 if len(words) > 1 and _BARE_SCRIPT_FLAG.fullmatch(words[0]) else None
    for index in range(shell + 1, len(words) - 1):
        if _SCRIPT_FLAG.fullmatch(words[index]):
            return index + 1
    return None


def _scripted(words: list[str], script: int, environment: Environment, text: str) -> Command:
    found = server_words(words[script], environment.get)
    sets = "PYTHONPATH" in assigned_names(words[script])
    if found is None:
        return Command(Start.OTHER, tuple(words), extensible=False, sets_pythonpath=sets, text=text)
    # The word after the script is $0.
    positional = tuple(words[script + 2 :])
    place = next((i for i, word in enumerate(found) if word.startswith(POSITIONAL)), None)
    tail = found if place is None else (*found[:place], *positional, *found[place + 1 :])
    extensible = place is not None and len(words) > script + 1 and "--" not in tail
    return Command(Start.SCRIPT, tail, extensible, sets_pythonpath=sets, text=text)
