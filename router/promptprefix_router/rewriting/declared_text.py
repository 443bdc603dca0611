"""A declared text as requests have to spell it, so that an engine reads the same from both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from promptprefix.canonical import JsonValue
from promptprefix.payload import Payload
from promptprefix_router.rewriting.json_spans import items, members

_JSON_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class DeclaredValue:
    """A JSON value, and its declared bytes as text."""

    value: JsonValue = field(repr=False)
    text: str = field(repr=False)

    def spelled_alike(self, value: JsonValue) -> bool:
        """Return whether a reader of JSON gets the same from both, order of keys included."""
        return _spelling(self.value) == _spelling(value)


@dataclass(frozen=True, slots=True)
class DeclaredText:
    """The pieces of a declared text; secrets, so they never show."""

    system: DeclaredValue
    tools: DeclaredValue
    functions: tuple[Mapping[str, DeclaredValue], ...] = field(repr=False)
    """The members of each tool's ``function``."""
    options: DeclaredValue

    @classmethod
    def of(cls, payload: Payload) -> Self:
        """Return the pieces of ``payload``. Raises `ValueError` for one that can't work."""
        tools = _declared(payload.tools, payload.toolDefinitions, "[]")
        return cls(
            system=DeclaredValue(payload.system, json.dumps(payload.system, ensure_ascii=False)),
            tools=tools,
            functions=tuple(_functions(payload.tools, tools.text)),
            options=_declared(payload.options, payload.chatTemplateOptions, "{}"),
        )


def _declared(value: JsonValue, text: str, empty: str) -> DeclaredValue:
    return DeclaredValue(value, text.strip(_JSON_SPACE) or empty)


def _functions(tools: Sequence[JsonValue], text: str) -> list[Mapping[str, DeclaredValue]]:
    found: list[Mapping[str, DeclaredValue]] = []
    for tool, span in zip(tools, items(text, 0)[0], strict=True):
        function = tool["function"] if isinstance(tool, Mapping) else {}
        for member in members(text, span.start)[0]:
            if member.name == "function" and isinstance(function, Mapping):
                pieces = members(text, member.value.start)[0]
                found.append(
                    {
                        piece.name: DeclaredValue(function[piece.name], text[slice(*piece.value)])
                        for piece in pieces
                    }
                )
    return found


def _spelling(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
