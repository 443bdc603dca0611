"""Rewrites the immutable part of a request to the declared bytes, where both mean the same.

Text in another Unicode form or with other line ends, and tools with their keys in another order,
have the declared fingerprint and other tokens. What is replaced is the text and the values of
tools and options, each in its place; all else stays byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from promptprefix.canonical import CanonicalError, JsonValue, canonical_bytes, parse_json
from promptprefix.request import UndeclaredError
from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import BILLING_HEADER, MESSAGES
from promptprefix.shapes.reading import OPTIONS_FIELD, SYSTEM_ROLES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape
from promptprefix_router.rewriting.declared_text import DeclaredText, DeclaredValue
from promptprefix_router.rewriting.json_spans import (
    Member,
    Span,
    SpanError,
    Splice,
    items,
    members,
    spliced,
    top_members,
)

Object = Mapping[str, JsonValue]

_FUNCTION_FIELDS: Mapping[str, Mapping[str, str]] = {
    MESSAGES.path: {"input_schema": "parameters"},
    RESPONSES.path: {},
}
"""What a function's members are called in APIs that have them in the tool itself."""

_PLAIN_PART = {"type", "text"}


class Obstacle(StrEnum):
    """Why a request keeps its own bytes."""

    NOT_STRICT = "not-strict"
    """No JSON in UTF-8 in which every key stands once."""
    PARTS = "parts"
    """Its text is in several parts with fields beside the text, such as a cache breakpoint."""
    OTHER_MEANING = "other-meaning"
    """It, or what came of it, has another fingerprint than the declared text."""


class ObstacleError(ValueError):
    """The request can't be rewritten without a change of its meaning."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle)
        self.obstacle = obstacle


def normalised(body: bytes, shape: Shape, declared: DeclaredText, fingerprint: str) -> bytes:
    """Return a request with the ``fingerprint`` of ``declared`` with its immutable part so spelled.

    A request that an engine reads as the declared text, white space aside, is returned as it is.
    Raises `ObstacleError`.
    """
    try:
        text = body.decode()
        value = parse_json(text)
        found, _ = top_members(text)
    except (UnicodeDecodeError, CanonicalError, SpanError) as error:
        raise ObstacleError(Obstacle.NOT_STRICT) from error
    if not isinstance(value, Mapping):
        raise ObstacleError(Obstacle.NOT_STRICT)
    _check_meaning(value, shape, fingerprint)
    request = _Request(text, value, {member.name: member for member in found})
    splices = [
        *_system_splices(request, shape, declared),
        *_tool_splices(request, shape, declared),
        *_option_splices(request, declared),
    ]
    if not splices:
        return body
    changed = spliced(text, splices).encode()
    _check_meaning(parse_json(changed), shape, fingerprint)
    return changed


def _check_meaning(value: JsonValue, shape: Shape, fingerprint: str) -> None:
    try:
        found = shape.immutable_part(value).fingerprint
    except (CanonicalError, UndeclaredError) as error:
        raise ObstacleError(Obstacle.OTHER_MEANING) from error
    if found != fingerprint:
        raise ObstacleError(Obstacle.OTHER_MEANING)


class _Request:
    """A body as text, as a value, and where its members stand."""

    def __init__(self, text: str, value: Object, found: Mapping[str, Member]) -> None:
        self.text = text
        self.value = value
        self._found = found

    def span(self, name: str) -> Span:
        return self._found[name].value


def _system_splices(request: _Request, shape: Shape, declared: DeclaredText) -> list[Splice]:
    value = request.value
    if not declared.system.value:
        return []
    if shape is MESSAGES:
        return _block_splices(request, declared.system)
    if shape is RESPONSES and value.get("instructions"):
        return _replaced(request.span("instructions"), value["instructions"], declared.system)
    turns = value[shape.conversation]
    if isinstance(turns, str) or not isinstance(turns, Sequence):
        return []
    return _leading_splices(request, request.span(shape.conversation), turns[0], declared.system)


def _leading_splices(
    request: _Request, turns: Span, first: JsonValue, system: DeclaredValue
) -> list[Splice]:
    if not isinstance(first, Mapping) or first.get("role") not in SYSTEM_ROLES:
        return []
    start = items(request.text, turns.start)[0][0].start
    content = _member(request.text, start, "content")
    value = first["content"]
    if isinstance(value, str):
        return _replaced(content, value, system)
    return _part_splices(request.text, content, value, (), system)


def _block_splices(request: _Request, system: DeclaredValue) -> list[Splice]:
    value = request.value["system"]
    if isinstance(value, str):
        return _replaced(request.span("system"), value, system)
    blocks = _objects(value)
    texts = [str(block.get("text") or "") for block in blocks]
    hidden = [index for index, text in enumerate(texts) if text.startswith(BILLING_HEADER)]
    if "".join(text for n, text in enumerate(texts) if n not in hidden) == system.value:
        return []
    return _part_splices(request.text, request.span("system"), value, hidden, system)


def _part_splices(
    text: str, span: Span, value: JsonValue, hidden: Collection[int], system: DeclaredValue
) -> list[Splice]:
    """Return what puts the text into the only part that is shown, or in the place of plain ones."""
    parts = value if isinstance(value, Sequence) else ()
    shown = [index for index in range(len(parts)) if index not in hidden]
    if len(shown) == 1:
        only = parts[shown[0]]
        if isinstance(only, Mapping):
            where = items(text, span.start)[0][shown[0]]
            return _replaced(_member(text, where.start, "text"), only["text"], system)
    plain = (isinstance(part, str) or set(_keys(part)) == _PLAIN_PART for part in parts)
    if hidden or not all(plain):
        raise ObstacleError(Obstacle.PARTS)
    return [Splice(span, system.text)]


def _tool_splices(request: _Request, shape: Shape, declared: DeclaredText) -> list[Splice]:
    tools = request.value.get("tools")
    if not tools or not declared.tools.value or _without_tools(request.value.get("tool_choice")):
        return []
    span = request.span("tools")
    if shape is CHAT:
        return _replaced(span, tools, declared.tools)
    names = _FUNCTION_FIELDS[shape.path]
    splices = []
    places = items(request.text, span.start)[0]
    for place, tool, function in zip(places, _objects(tools), declared.functions, strict=True):
        for member in members(request.text, place.start)[0]:
            piece = function.get(names.get(member.name, member.name))
            # A tool's own type is not its function's, and null stands for nothing.
            if piece is not None and member.name != "type" and tool[member.name] is not None:
                splices += _replaced(member.value, tool[member.name], piece)
    return splices


def _option_splices(request: _Request, declared: DeclaredText) -> list[Splice]:
    """Replace the options that are the declared ones; a reasoning effort may bring some of them."""
    options = request.value.get(OPTIONS_FIELD)
    if not options or canonical_bytes(options) != canonical_bytes(declared.options.value):
        return []
    return _replaced(request.span(OPTIONS_FIELD), options, declared.options)


def _without_tools(choice: JsonValue) -> bool:
    return choice == "none" or (isinstance(choice, Mapping) and choice.get("type") == "none")


def _replaced(span: Span, value: JsonValue, declared: DeclaredValue) -> list[Splice]:
    return [] if declared.spelled_alike(value) else [Splice(span, declared.text)]


def _member(text: str, start: int, name: str) -> Span:
    return next(member.value for member in members(text, start)[0] if member.name == name)


def _objects(value: JsonValue) -> list[Object]:
    if not isinstance(value, Sequence):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def _keys(part: JsonValue) -> Collection[str]:
    return part.keys() if isinstance(part, Mapping) else ()
