"""How a shell reads the command that starts vLLM, as far as that can be told without running it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

UNRESOLVED: Final = "\1"
"""Stands for what only the running shell knows."""

POSITIONAL: Final = "\2"
"""Stands for ``$@``, the arguments after the script."""

_SERVER: Final = re.compile(
    r"(?<![\w.-])(?:vllm\s+serve|-m\s+vllm\.entrypoints\.(?:openai\.api_server|cli\.main\s+serve))"
    r"(?=[\s\"';&|)]|$)"
)
_ASSIGNMENT: Final = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=")
_EXPANSIONS: Final = (
    r"(?P<escaped>\\.)"
    r"|(?P<double>\")"
    r"|(?P<positional>\$[@*]|\$\{[@*]\})"
    r"|(?P<variable>\$\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}$`]{0,256}+))?\}"
    r"|\$(?P<plain>[A-Za-z_]\w*))"
    r"|(?P<unknown>\$\(\([^)]{0,256}+\)\)|\$\([^()]{0,256}+\)|`[^`]{0,256}+`|\$\{[^}]{0,256}+\}|\$[(0-9?!#$-])"
)
_INSIDE: Final = re.compile(rf"{_EXPANSIONS}|(?P<text>[^\\\"$`]+|.)", re.DOTALL)
_OUTSIDE: Final = re.compile(
    r"(?P<single>'[^']*')"
    rf"|{_EXPANSIONS}"
    r"|(?P<end>[;&|\n<>()]|(?<!\S)#)"
    r"|(?P<space>\s+?)"
    r"|(?P<text>[^'\\\"$`\s;&|<>()]+|.)",
    re.DOTALL,
)

Lookup = Callable[[str], str | None]


def server_words(script: str, lookup: Lookup) -> tuple[str, ...] | None:
    """Return the words after ``vllm serve`` (the last one in ``script``); None if there is none.

    ``lookup`` gives the value of a variable; what the script itself assigns is not known. The
    command may stand in quotes (``eval "exec vllm serve … $@"``): it is read from its name on.
    """
    text = script.replace("\\\n", " ")
    found = list(_SERVER.finditer(text))
    if not found:
        return None

    assigned = assigned_names(text)

    def value(name: str) -> str | None:
        return None if name in assigned else lookup(name)

    return _Reader(value).read(text[found[-1].end() :])


def assigned_names(script: str) -> frozenset[str]:
    """Return the names of the variables that ``script`` sets."""
    return frozenset(_ASSIGNMENT.findall(script))


class _Reader:
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._words: list[str] = []
        self._word: list[str] = []
        self._quoted = False

    def read(self, text: str) -> tuple[str, ...]:
        """Return the words of ``text`` up to the end of its first command."""
        position = 0
        while position < len(text):
            token = (_INSIDE if self._quoted else _OUTSIDE).match(text, position)
            if token is None or not self._take(token):
                break
            position = token.end()
        self._close()
        return tuple(self._words)

    def _take(self, token: re.Match[str]) -> bool:
        """Read a token; whether the command goes on."""
        match token.lastgroup:
            case "double":
                self._quoted = not self._quoted
                self._add("")
            case "single":
                self._add(token[0][1:-1])
            case "escaped":
                self._add(token[0][1])
            case "positional":
                self._add(POSITIONAL)
            case "unknown":
                self._add(UNRESOLVED)
            case "variable":
                self._expand(token)
            case "space":
                self._close()
            case "end":
                return False
            case _:
                self._add(token[0])
        return True

    def _expand(self, token: re.Match[str]) -> None:
        value = self._lookup(token["braced"] or token["plain"])
        if not value and token["default"] is not None:
            value = token["default"]
        if value is None:
            value = UNRESOLVED
        if self._quoted:
            self._add(value)
            return
        for index, piece in enumerate(re.split(r"\s+", value)):
            if index:
                self._close()
            if piece:
                self._add(piece)

    def _add(self, text: str) -> None:
        self._word.append(text)

    def _close(self) -> None:
        if self._word:
            self._words.append("".join(self._word))
            self._word = []
