"""Where the members of a JSON object stand in its text, so that some can be replaced in place.

Reads what Python's own `json` reads, and so what an engine reads: escaped names, names that stand
twice, NaN. Numbers are not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MAX_MEMBERS = 1024
"""Members of an object that are looked at; a request of any API has some dozens.

Each takes a while, and a body has room for some hundred thousand.
"""

_SPACE = re.compile(r"[ \t\n\r]*")


class SpanError(ValueError):
    """The text is no JSON of the expected kind; it is not quoted."""


def _nothing(_text: str) -> None:
    """Stand for a number: its value is of no interest, and its length must not matter."""


_DECODER = json.JSONDecoder(parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)


class Span(NamedTuple):
    """Part of a text: from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Member:
    """A name, as it reads without escapes, where it begins, and where its value stands."""

    name: str
    start: int
    value: Span


class Splice(NamedTuple):
    """What stands in ``span`` is to become ``text``."""

    span: Span
    text: str


def members(text: str, start: int) -> tuple[tuple[Member, ...], Span]:
    """Return the members of the object at ``start``, in order, and the object's span."""
    found: list[Member] = []
    at, ended = _opened(text, start, "{", "}")
    while not ended:
        if len(found) == MAX_MEMBERS:
            raise SpanError("more members than any request has")
        begin = at
        name, at = _value(text, begin)
        if not isinstance(name, str):
            raise SpanError("a member's name is no string")
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise SpanError("a member has no value")
        value = _skip(text, at + 1)
        _, end = _value(text, value)
        found.append(Member(name, begin, Span(value, end)))
        at, ended = _next(text, end, "}")
    return tuple(found), Span(start, at)


def items(text: str, start: int) -> tuple[tuple[Span, ...], Span]:
    """Return where the items of the array at ``start`` stand, in order, and the array's span."""
    found = []
    at, ended = _opened(text, start, "[", "]")
    while not ended:
        _, end = _value(text, at)
        found.append(Span(at, end))
        at, ended = _next(text, end, "]")
    return tuple(found), Span(start, at)


def top_members(text: str) -> tuple[tuple[Member, ...], Span]:
    """Return the members of the object that ``text`` is, and its span without white space."""
    found, span = members(text, _skip(text, 0))
    if _skip(text, span.end) != len(text):
        raise SpanError("something follows the object")
    return found, span


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """Return ``text`` with each of ``splices`` made; they must not overlap."""
    pieces = []
    kept = 0
    for span, new in sorted(splices):
        pieces += [text[kept : span.start], new]
        kept = span.end
    return "".join([*pieces, text[kept:]])


def _opened(text: str, start: int, opening: str, closing: str) -> tuple[int, bool]:
    """Return where the first part of a container begins, or its end if it is empty."""
    if text[start : start + 1] != opening:
        raise SpanError(f"no {opening}")
    at = _skip(text, start + 1)
    return (at + 1, True) if text[at : at + 1] == closing else (at, False)


def _next(text: str, at: int, closing: str) -> tuple[int, bool]:
    at = _skip(text, at)
    match text[at : at + 1]:
        case ",":
            return _skip(text, at + 1), False
        case mark if mark == closing:
            return at + 1, True
    raise SpanError(f"no , or {closing}")


def _value(text: str, at: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise SpanError("not JSON, or nested too deep") from error


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
