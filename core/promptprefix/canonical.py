"""Canonical form of JSON values: one spelling for everything that means the same.

Every string, object keys included, is put in Unicode NFC with ``\\r\\n`` and ``\\r`` turned into
``\\n``; the value is then serialised by RFC 8785 (JCS). Nothing is trimmed.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any, TypeAlias

import rfc8785

from promptprefix.jcs import jcs

JsonValue: TypeAlias = (
    "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)

MAX_EXACT_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (RFC 8785, section 3.2.2.3)."""

FIRST_EXPONENT = 1e21
"""From here on JCS writes a number with an exponent, so that it never reads as an integer."""

MAX_DEPTH = 100
"""Nesting beyond this is refused: it is no tool schema, and recursion must end."""

MAX_SHOWN = 64
"""Characters of a key in a message."""


_STRING_OR_END = re.compile(r'"(?:[^"\\]|\\.)*"|\}')
"""A string of JSON, or the end of an object."""

_MARKS = re.compile(r"[^\w\s\x00-\x7f]{32,}")
"""A long run in which all combining marks of a text stand, among other symbols."""

_STRIDE = 16
_SOME_MARKS = re.compile(r"[^\w\s\x00-\x7f]{2}")
"""What stands in every sixteenth character of a text that has a long run: a look that is cheap."""

_MARK_PAIRS = str.maketrans(
    {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}
)
"""The only characters of class 0 that decompose into marks alone."""


class CanonicalError(ValueError):
    """The value has no canonical form.

    ``path`` is a JSON pointer (RFC 6901) to the place. Message and path may quote keys;
    ``unquoted`` says what is wrong without any part of the value.
    """

    def __init__(self, message: str, path: str = "", unquoted: str = "") -> None:
        super().__init__(f"{message} (at {path})" if path else message)
        self.path = path
        self.unquoted = unquoted or message


def canonical_text(text: str) -> str:
    """Return ``text`` in NFC with every line end as a single line feed."""
    if text.isascii():
        normal = text
    else:
        if _SOME_MARKS.search(text[::_STRIDE]):
            text = _MARKS.sub(_ordered, text)
        normal = unicodedata.normalize("NFC", text)
        try:
            normal.encode()
        except UnicodeEncodeError as error:
            raise CanonicalError("a lone surrogate is not text") from error
    if "\r" in normal:
        normal = normal.replace("\r\n", "\n").replace("\r", "\n")
    return normal


def _ordered(run: re.Match[str]) -> str:
    """Put combining marks in canonical order, an equivalent spelling.

    `unicodedata.normalize` does so in time that grows with the square of their number: minutes for
    a text of 1 MB.
    """
    ordered: list[str] = []
    groups = groupby(run[0].translate(_MARK_PAIRS), lambda char: unicodedata.combining(char) > 0)
    for marks, group in groups:
        ordered.extend(sorted(group, key=unicodedata.combining) if marks else group)
    return "".join(ordered)


def canonical_value(value: JsonValue, path: str = "", depth: int = 0) -> JsonValue:
    """Return ``value`` with all strings canonical; raise `CanonicalError` if JCS can't hold it."""
    if depth > MAX_DEPTH:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels", path)
    if isinstance(value, str):
        try:
            return canonical_text(value)
        except CanonicalError as error:
            raise CanonicalError(str(error), path) from error
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return _canonical_number(value, path)
    if isinstance(value, Mapping):
        return _canonical_object(value, path, depth)
    return [canonical_value(item, f"{path}/{i}", depth + 1) for i, item in enumerate(value)]


def _canonical_number(value: float, path: str) -> float:
    """Refuse what no reader keeps, an integer beyond 2^53 in a float's spelling included."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CanonicalError("a number is too large for JSON", path)
        if abs(value) >= FIRST_EXPONENT or not value.is_integer():
            return value
    if abs(value) > MAX_EXACT_INTEGER:
        raise CanonicalError("an integer beyond 2^53 is not exact in JSON", path)
    return value


def _canonical_object(value: Mapping[str, JsonValue], path: str, depth: int) -> JsonValue:
    result: dict[str, JsonValue] = {}
    for key, item in value.items():
        try:
            name = canonical_text(key)
        except CanonicalError as error:
            raise CanonicalError(str(error), path) from error
        place = f"{path}/{_pointer_part(name)}"
        if name in result:
            raise CanonicalError("two keys are equal after Unicode normalisation", place)
        result[name] = canonical_value(item, place, depth + 1)
    return result


def _pointer_part(key: str) -> str:
    return _shown(key).replace("~", "~0").replace("/", "~1")


def _shown(key: str) -> str:
    """Return a key short enough for a message, which may go into a condition."""
    return key if len(key) <= MAX_SHOWN else f"{key[:MAX_SHOWN]}…"


def canonical_bytes(value: JsonValue, path: str = "", depth: int = 0) -> bytes:
    """Return the RFC 8785 serialisation of the canonical ``value``, in UTF-8."""
    try:
        return jcs(canonical_value(value, path, depth))
    except rfc8785.CanonicalizationError as error:
        raise CanonicalError(str(error)) from error


def parse_json(text: str | bytes) -> JsonValue:
    """Parse strict JSON; duplicate keys, NaN and infinities raise `CanonicalError`."""
    ended = 0

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal ended
        ended += 1
        if double := _double(pairs):
            place = f"the object that ends at character {_object_end(text, ended)}"
            message = f"the key {_shown(double[0])!r} stands twice in one object"
            raise CanonicalError(message, unquoted=f"a key stands twice in {place}")
        return dict(pairs)

    try:
        return json.loads(  # type: ignore[no-any-return]
            text, object_pairs_hook=unique, parse_constant=_no_constant
        )
    except CanonicalError:
        raise
    except RecursionError as error:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, digits beyond the limit
        raise CanonicalError(f"not JSON: {error}") from error


def _double(pairs: list[tuple[str, Any]]) -> list[str]:
    """Return the keys that stand more than once."""
    if len(dict(pairs)) == len(pairs):
        return []
    return [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _object_end(text: str | bytes, number: int) -> int:
    """Return the offset of the brace that ends the object that is ``number``th to end."""
    whole = (
        text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    )
    ends = (found.start() for found in _STRING_OR_END.finditer(whole) if found[0] == "}")
    return next(islice(ends, number - 1, None))


def _no_constant(name: str) -> Any:
    raise CanonicalError(f"{name} is not JSON")
