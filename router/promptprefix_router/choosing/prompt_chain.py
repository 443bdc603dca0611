"""A request's prompt as a chain of hashes: equal hashes are equal beginnings.

The prompt is taken as the client's JSON spells it: tools, system text and turns, in this order.
That says nothing sure of an engine's tokens, so it serves estimates alone. What comes before every
token of an engine's cache, the model (or LoRA adapter) and the salt, comes before the first chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from promptprefix.shapes import SHAPES
from promptprefix_router.choosing.ring import place_of
from promptprefix_router.matching.matcher import Question

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


@dataclass(frozen=True, slots=True)
class PromptChain:
    """Hashes of a prompt's whole chunks, each of its chunk and all before it.

    They are good within this process: Python keys them anew in each, so that no client can make
    two prompts look alike. The places on a ring are the same in every picker.
    """

    hashes: tuple[int, ...] = ()
    _before: bytes = field(default=b"", repr=False)
    _text: bytes = field(default=b"", repr=False)

    @property
    def opening(self) -> int:
        """Place on a ring of the first chunk: prompts that begin alike have the same."""
        return place_of(self._before + self._text[:CHUNK_BYTES])

    @property
    def ending(self) -> int:
        """Place on a ring of the last whole chunk: different talks have different ones."""
        end = len(self.hashes) * CHUNK_BYTES
        return place_of(self._text[end - CHUNK_BYTES : end])


NO_CHAIN = PromptChain()


class _Fields:
    """Cuts out of a body of one API what its prompt is made of."""

    def __init__(self, path: str, long: tuple[str, ...], short: tuple[str, ...]) -> None:
        self._path = path.encode()
        self._long = long
        self._short = short
        names = dict.fromkeys(("model", *long, *short))
        struct = msgspec.defstruct("Prompt", [(name, msgspec.Raw, _ABSENT) for name in names])
        self._decoder = msgspec.json.Decoder(struct)

    def chain(self, body: bytes, salt: str) -> PromptChain:
        """Return the chain of a prompt; `NO_CHAIN` for no object of JSON."""
        try:
            found: Any = self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return NO_CHAIN
        long = [bytes(getattr(found, name)) for name in self._long]
        text = b"".join(long)
        if len(text) < CHUNK_BYTES:
            return NO_CHAIN
        # The sizes tell where each part ends.
        short = [bytes(getattr(found, name)) for name in ("model", *self._short)]
        short.append(salt.encode())
        before = b"%s %s %s" % (
            self._path,
            repr([len(part) for part in short]).encode(),
            b"".join(short),
        )
        return PromptChain(_hashes(before, text), before, text)


def _hashes(before: bytes, text: bytes) -> tuple[int, ...]:
    end = min(len(text) - len(text) % CHUNK_BYTES, MAX_CHUNKS * CHUNK_BYTES)
    known = hash(before)
    hashes = []
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
    return fields.chain(question.body, salt)
