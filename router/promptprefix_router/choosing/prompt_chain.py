"""A request's prompt as a chain of hashes: equal hashes are equal beginnings.

The prompt is taken as the client's JSON spells it: tools, system text and turns, in this order.
That says nothing sure of an engine's tokens, so it serves estimates alone. What comes before every
token of an engine's cache, the model (or LoRA adapter) and the salt, comes before the first chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from promptprefix.shapes import SHAPES
from promptprefix_router.choosing.ring import place_of
from promptprefix_router.matching.matcher import Question
from promptprefix_router.matching.openings import Opening
from promptprefix_router.matching.request_head import DeclaringHead

CHUNK_BYTES = 1024
BYTES_PER_TOKEN = 4
CHUNK_TOKENS = CHUNK_BYTES // BYTES_PER_TOKEN
MAX_CHUNKS = 4096
"""Chunks that are looked at; what comes after them is the request's own."""

COMPLETIONS_PATH = "/v1/completions"

_LONG = ("tools", "system", "instructions")
"""Long fields in the order of the chain; all others that decide go before the first chunk."""
_NOT_PRINTED = "tool_choice"
_ABSENT = msgspec.Raw()
_END = b"]"
"""Ends a conversation; nothing else of the chain comes after the turns."""


@dataclass(frozen=True, slots=True)
class PromptChain:
    """Hashes of a prompt's whole chunks, each of its chunk and all before it.

    They are good within this process: Python keys them anew in each, so that no client can make
    two prompts look alike. The places on a ring are the same in every picker.
    """

    hashes: tuple[int, ...] = ()
    _first: bytes = field(default=b"", repr=False)
    """The first chunk, with what comes before it."""
    _last: bytes = field(default=b"", repr=False)

    @property
    def opening(self) -> int:
        """Place on a ring of the first chunk: prompts that begin alike have the same."""
        return place_of(self._first)

    @property
    def ending(self) -> int:
        """Place on a ring of the last whole chunk: different talks have different ones."""
        return place_of(self._last)


NO_CHAIN = PromptChain()


@dataclass(frozen=True, slots=True, repr=False)
class _Start:
    """The whole chunks of all that comes before the later turns, and the rest of it."""

    salt: str
    hashes: tuple[int, ...]
    first: bytes
    last: bytes
    rest: bytes


class _Fields:
    """Cuts out of a body of one API what its prompt is made of."""

    def __init__(self, path: str, long: tuple[str, ...], short: tuple[str, ...]) -> None:
        self._path = path.encode()
        self._long = long
        self._short = short
        names = dict.fromkeys(("model", *long, *short))
        struct = msgspec.defstruct("Prompt", [(name, msgspec.Raw, _ABSENT) for name in names])
        self._decoder = msgspec.json.Decoder(struct)
        # As long as an opening is remembered.
        self._starts: WeakKeyDictionary[Opening[DeclaringHead], _Start] = WeakKeyDictionary()

    def chain(self, question: Question, salt: str) -> PromptChain:
        """Return the chain of a prompt; `NO_CHAIN` for no object of JSON."""
        known = question.known
        if known is not None:
            start = self._starts.get(known.opening)
            if start is not None and start.salt == salt:
                return _continued(start, known.turns + _END)
        try:
            before, text = self._cut(question.body, salt)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return NO_CHAIN
        later = b"" if known is None else known.turns + _END
        fixed = text[: len(text) - len(later)]
        if known is None or len(fixed) < CHUNK_BYTES:
            return _continued(_start(before, text, salt), b"")
        start = self._starts[known.opening] = _start(before, fixed, salt)
        return _continued(start, later)

    def _cut(self, body: bytes, salt: str) -> tuple[bytes, bytes]:
        """Return what comes before the first chunk, and the text that the chunks are cut from."""
        found: Any = self._decoder.decode(body)
        text = b"".join([bytes(getattr(found, name)) for name in self._long])
        # The sizes tell where each part ends.
        short = [bytes(getattr(found, name)) for name in ("model", *self._short)]
        short.append(salt.encode())
        before = b"%s %s %s" % (
            self._path,
            repr([len(part) for part in short]).encode(),
            b"".join(short),
        )
        return before, text


def _start(before: bytes, text: bytes, salt: str) -> _Start:
    hashes = _hashes(hash(before), text, MAX_CHUNKS)
    end = len(hashes) * CHUNK_BYTES
    first, last = before + text[:CHUNK_BYTES], text[max(0, end - CHUNK_BYTES) : end]
    return _Start(salt, hashes, first, last, text[end : end + CHUNK_BYTES])


def _continued(start: _Start, later: bytes) -> PromptChain:
    if not start.hashes:
        return NO_CHAIN
    text = start.rest + later
    more = _hashes(start.hashes[-1], text, MAX_CHUNKS - len(start.hashes))
    end = len(more) * CHUNK_BYTES
    last = text[end - CHUNK_BYTES : end] if more else start.last
    return PromptChain(start.hashes + more, start.first, last)


def _hashes(known: int, text: bytes, most: int) -> tuple[int, ...]:
    """Return the hashes of the whole chunks of ``text`` after ``known``, at most so many."""
    hashes = []
    end = min(len(text) // CHUNK_BYTES, most) * CHUNK_BYTES
    for start in range(0, end, CHUNK_BYTES):
        known = hash((known, text[start : start + CHUNK_BYTES]))
        hashes.append(known)
    return tuple(hashes)


def _fields_by_path() -> Mapping[str, _Fields]:
    fields = {COMPLETIONS_PATH: _Fields(COMPLETIONS_PATH, ("prompt",), ())}
    for path, shape in SHAPES.items():
        long = tuple(name for name in _LONG if name in shape.values)
        short = [name for name in shape.values if name not in (*_LONG, _NOT_PRINTED)]
        fields[path] = _Fields(path, (*long, shape.conversation), (*short, *shape.markers))
    return fields


_FIELDS = _fields_by_path()


def read_chain(question: Question, salt: str = "") -> PromptChain:
    """Return the chain of a request's prompt; ``salt`` is what its engine reads.

    `NO_CHAIN` for a prompt shorter than a chunk, a body that was cut, and a path that computes no
    prompt.
    """
    fields = _FIELDS.get(question.path)
    if fields is None or question.partial or len(question.body) < CHUNK_BYTES:
        return NO_CHAIN
    return fields.chain(question, salt)
