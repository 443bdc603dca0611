"""What the picker reads of a request body: raw slices, so that nothing else costs time.

The slices decide the fingerprint, so their bytes are the key under which it is remembered.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import msgspec

from promptprefix.canonical import JsonValue, parse_json
from promptprefix.request import SALT_FIELD, Surroundings
from promptprefix.shapes.shape import Shape, Turns
from promptprefix_router.matching.body_slices import ABSENT, TEXT, USER_TURN, BodySlicer, BodySlices
from promptprefix_router.matching.openings import Known, Openings
from promptprefix_router.traces import Traces, stands

NO_SALT = ""

Parts: TypeAlias = tuple[tuple[str, bytes], ...]
"""Names and raw JSON of fields."""

_MODEL_TEXT = re.compile(rb'"model"\s*:\s*"([^"\\]{1,512})"')


class MalformedError(ValueError):
    """The body is no request of its API; the engine will say so."""


class _ModelBody(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT


_MODEL_DECODER = msgspec.json.Decoder(_ModelBody)
_TEXT_DECODER = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request of any API says of itself.

    ``salt`` is its cache salt: `NO_SALT` without one, None if it is nothing that an engine takes.
    """

    model: str
    salt: str | None = field(repr=False)


@dataclass(frozen=True)
class DeclaringHead(RequestHead):
    """The parts of a request of an API that declares, as raw JSON: what `Shape` says decides.

    Those that decide the system text stand apart: a tail that a client adds to it changes them in
    every request, while the parts around it stay.
    """

    shape: Shape
    around: Parts = field(repr=False)
    within: Parts = field(repr=False)
    ambiguous: bool
    """Whether a name of a part, or of the salt, stands twice somewhere, or in escapes."""

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(len(raw) for _, raw in (*self.around, *self.within))

    @cached_property
    def names(self) -> tuple[bytes, ...]:
        """The names of its fields, in quotes."""
        names = dict.fromkeys((SALT_FIELD, *(name for name, _ in (*self.around, *self.within))))
        return tuple(b'"%s"' % name.encode() for name in names)

    @cached_property
    def keys(self) -> tuple[bytes, bytes]:
        """Digests of the API's name and the raw parts around, and of that and all the others.

        Equal ones have equal frames, and equal fingerprints.
        """
        around = _digest(self.shape.path.encode(), self.around)
        return around, _digest(around, self.within)

    def surroundings(self) -> Surroundings:
        """Read the parts around, strictly; raise `UndeclaredError` or `CanonicalError`."""
        return self.shape.surroundings(_parsed(self.around))

    def system(self) -> str:
        """Read the system text, strictly; raise `UndeclaredError` or `CanonicalError`."""
        return self.shape.system(_parsed(self.within))


def _digest(start: bytes, parts: Parts) -> bytes:
    said = [start]
    for name, raw in parts:
        said += (b" %s %d " % (name.encode(), len(raw)), raw)
    return hashlib.sha256(b"".join(said)).digest()


def _parsed(parts: Parts) -> JsonValue:
    return {name: parse_json(raw) for name, raw in parts}


class DeclaringReader:
    """Reads requests of the API that ``shape`` describes.

    Those that begin and end like one that was to be remembered need not be read again.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._slicer = BodySlicer(shape)
        self._openings: Openings[DeclaringHead] = Openings(
            shape.conversation, weigh=lambda head: head.size
        )

    def known(self, body: bytes) -> Known[DeclaringHead] | None:
        """Return the opening of a request, whose head is the one that `read` would return."""
        found = self._openings.find(body)
        if found is None or found.traces.escaped:
            return None
        # A name among the turns looks like one that stands twice.
        for name in found.opening.head.names:
            if stands(name, found.turns):
                return None
        return found

    def read(self, body: bytes, traces: Traces | None = None) -> DeclaringHead:
        """Return the head of a request; raise `MalformedError`.

        ``traces`` are those of the body, if they are known.
        """
        try:
            slices = self._slicer.cut(body)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise MalformedError("not a JSON object of the expected shape") from error
        model = _text(slices.model)
        if model is None:
            raise MalformedError("no model")
        around = [("model", bytes(slices.model))]
        within: list[tuple[str, bytes]] = []
        for part in slices.parts:
            (within if part[0] in self._shape.system_fields else around).append(part)
        return DeclaringHead(
            model,
            _salt(slices.salt),
            self._shape,
            tuple(around),
            tuple(within),
            (traces or Traces.of(body)).escaped or _ambiguous(body, slices),
        )

    def remember(self, body: bytes, head: DeclaringHead) -> None:
        """Remember what was read of ``body``: more like it are to be expected."""
        if head.ambiguous or self._shape.turns is Turns.ROLES:
            return
        turns = dict(head.within).get(self._shape.conversation, b"")
        # Only a system text is the same in many conversations.
        if turns not in (b"", TEXT, USER_TURN):
            self._openings.remember(body, turns[1:-1], head)


def read_head(body: bytes) -> RequestHead:
    """Return the head of a request of any API; raise `MalformedError`."""
    try:
        decoded = _MODEL_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise MalformedError("not a JSON object") from error
    model = _text(decoded.model)
    if model is None:
        raise MalformedError("no model")
    return RequestHead(model, _salt(decoded.cache_salt))


def guess_model(start: bytes) -> str | None:
    """Return what looks like the model in the first part of a body, for want of the whole."""
    found = _MODEL_TEXT.search(start)
    return found[1].decode("utf-8", "replace") if found else None


def check_unambiguous(body: bytes) -> None:
    """Raise `CanonicalError` if a key stands twice anywhere in ``body``."""
    parse_json(body)


def _ambiguous(body: bytes, slices: BodySlices) -> bool:
    if _stands_twice(body, "model") or (slices.salt and _stands_twice(body, SALT_FIELD)):
        return True
    return any(_stands_twice(body, name) for name, _ in slices.parts)


def _stands_twice(body: bytes, name: str) -> bool:
    """Return whether ``name`` may be a key twice; values that are equal to it are not counted."""
    quoted = b'"%s"' % name.encode()
    return body.count(quoted) > 1 and len(re.findall(rb"%s\s*:" % quoted, body)) > 1


def _salt(raw: msgspec.Raw) -> str | None:
    if not raw or bytes(raw) == b"null":
        return NO_SALT
    return _text(raw) or None


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _TEXT_DECODER.decode(raw) if raw else None
    except (msgspec.MsgspecError, ValueError):
        return None
