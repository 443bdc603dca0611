"""Rule ``unstable-tool-json``: tool definitions that two clients would not spell alike.

The engine parses the tools and prints them through its chat template, so white space and escapes
don't matter; what survives parsing does. Three things show an unstable serialisation:

- Two objects of the same kind (tool, function, schema) put the same two keys in opposite orders.
  Neither sorted keys nor one habitual order (type, function; name, description, parameters) does
  that; dictionaries filled from several sources do. vLLM orders the keys of tools and functions
  itself, so there the tokens stay, and the finding is of a serialiser that should not be trusted.
  Order that carries meaning is left alone: that of the tools, and that of a function's arguments.
- A whole number with a fraction or exponent (``1.0``): other languages send ``1``, which a template
  prints differently.
- Two tools with one name: a client that keeps its tools in a dictionary drops one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from promptprefix.lint.hit import Hit
from promptprefix.lint.json_places import JsonPlaces, ObjectPlace, Role, json_places
from promptprefix.payload import Payload, PayloadError

RULE = "unstable-tool-json"
PATH = "toolDefinitions"

ORDERED = (Role.TOOL, Role.FUNCTION, Role.SCHEMA)
ORDERED_BY_ENGINE = (Role.TOOL, Role.FUNCTION)

MAX_KEYS = 32
"""Keys of an object whose order is compared; real tools and schemas have fewer."""


def unstable_tools(payload: Payload) -> Iterator[Hit]:
    """Yield the places in the tools that are not stable; nothing if they aren't valid."""
    try:
        names = [_name(tool) for tool in payload.tools]
    except PayloadError:
        return
    if not names:
        return
    places = json_places(payload.toolDefinitions)
    found = [*_mixed_orders(places), *_whole_floats(places), *_same_names(places, names)]
    yield from sorted(found, key=lambda hit: hit.offset)


def _name(tool: object) -> str:
    """Return the name of a tool that `Payload.tools` has checked."""
    match tool:
        case {"function": {"name": str(name)}}:
            return name
    return ""


def _mixed_orders(places: JsonPlaces) -> Iterator[Hit]:
    seen: dict[Role, set[tuple[str, str]]] = defaultdict(set)
    for place in places.objects:
        if place.role not in ORDERED:
            continue
        pairs = seen[place.role]
        offset = _first_contradiction(place, pairs)
        if offset is None:
            pairs.update(combinations(_compared(place), 2))
        else:
            yield Hit(
                RULE,
                PATH,
                offset,
                "keys in another order than in an earlier object of the same kind",
                "write all tools with sorted keys, here and in the clients",
                loses=place.role not in ORDERED_BY_ENGINE,
            )


def _compared(place: ObjectPlace) -> list[str]:
    return [key for key, _ in place.keys[:MAX_KEYS]]


def _first_contradiction(place: ObjectPlace, pairs: set[tuple[str, str]]) -> int | None:
    keys = _compared(place)
    for index, key in enumerate(keys):
        if any((key, earlier) in pairs for earlier in keys[:index]):
            return place.keys[index][1]
    return None


def _whole_floats(places: JsonPlaces) -> Iterator[Hit]:
    for spelling, offset in places.numbers:
        if not spelling.lstrip("-").isdigit() and float(spelling).is_integer():
            yield Hit(
                RULE,
                PATH,
                offset,
                "a whole number with a fraction or exponent, which some clients send without",
                "write it as an integer, here and in the clients",
            )


def _same_names(places: JsonPlaces, names: list[str]) -> Iterator[Hit]:
    tools = [place for place in places.objects if place.role is Role.TOOL]
    seen: set[str] = set()
    for place, name in zip(tools, names, strict=True):
        if name in seen:
            yield Hit(
                RULE,
                PATH,
                place.offset,
                "a tool with the name of an earlier one",
                "give every tool its own name",
                severity="Error",
            )
        seen.add(name)
