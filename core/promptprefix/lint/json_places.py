"""Where things stand in the JSON text of a tools array: objects, their keys, numbers.

Parsed JSON has lost its offsets, so the text is walked once more, without recursion.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum, auto

TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]|-?[0-9][0-9.eE+-]*|[a-z]+', re.DOTALL)

SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
SCHEMA_PLACES = frozenset(
    {
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
    }
)


class Role(Enum):
    """What an object of a tools array is."""

    TOOL = auto()
    FUNCTION = auto()
    SCHEMA = auto()
    SCHEMA_MAP = auto()
    """Names of arguments or definitions to schemas."""
    DATA = auto()
    """Values of the author's own: defaults, examples, unknown extensions."""


@dataclass(frozen=True)
class ObjectPlace:
    """One object: where it begins, and its keys with their offsets, in their order."""

    role: Role
    offset: int
    keys: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class JsonPlaces:
    """Objects in the order of their first characters; numbers as they are spelled."""

    objects: list[ObjectPlace]
    numbers: list[tuple[str, int]]


@dataclass
class _Frame:
    role: Role
    place: ObjectPlace | None
    key: str | None = None


def json_places(text: str) -> JsonPlaces:
    """Return the places in ``text``, which must be valid JSON with an array at its top."""
    places = JsonPlaces([], [])
    stack: list[_Frame] = []
    for match in TOKEN.finditer(text):
        part, offset = match[0], match.start()
        frame = stack[-1] if stack else None
        if part in "{[":
            role = _role(frame)
            place = ObjectPlace(role, offset) if part == "{" else None
            if place:
                places.objects.append(place)
            stack.append(_Frame(role, place))
        elif part in "}]":
            stack.pop()
        elif part == ",":
            if frame:
                frame.key = None
        elif part[0] == '"':
            if frame and frame.place and frame.key is None:
                frame.key = str(json.loads(part))
                frame.place.keys.append((frame.key, offset))
        elif part[0] in "-0123456789":
            places.numbers.append((part, offset))
    return places


def _role(frame: _Frame | None) -> Role:
    """Return the role of what begins inside ``frame``; elements have the role of their array."""
    if frame is None:
        return Role.TOOL
    if frame.place is None:
        return frame.role
    match frame.role, frame.key:
        case Role.TOOL, "function":
            return Role.FUNCTION
        case (Role.FUNCTION, "parameters") | (Role.SCHEMA_MAP, _):
            return Role.SCHEMA
        case Role.SCHEMA, key if key in SCHEMA_MAPS:
            return Role.SCHEMA_MAP
        case Role.SCHEMA, key if key in SCHEMA_PLACES:
            return Role.SCHEMA
        case _:
            return Role.DATA
