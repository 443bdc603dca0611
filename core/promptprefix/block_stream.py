"""The feed of a pod's cached blocks: their names, the frames they travel in, and its door.

A block's name is a keyed hash over its parent's name and its tokens, so it stands for all tokens
before it too. Whoever lacks the namespace's key can neither read a name nor test a guess.

A feed is the endless answer to ``GET BLOCKS_PATH?every=N``: `Hello`, what is held (`Added`),
`Whole`, then changes. A frame is a kind (1 byte), the length of its body (4 bytes, big-endian),
and the body. Frames of kinds that a reader doesn't know are passed over.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from promptprefix.tokens import TOKEN_BYTES, token_bytes

BLOCKS_PATH: Final = "/v1/blocks"
STREAM_VERSION: Final = 1

DEFAULT_EVERY: Final = 4
MAX_EVERY: Final = 64
"""A feed tells of each block whose depth (1 for a prompt's first) is a multiple of ``every``."""

ALIVE_S: Final = 5.0
"""Seconds after which a feed without news says that it is there."""

KEY_BYTES: Final = 32
NAME_BYTES: Final = 8
MAX_NAMES: Final = 8_192
"""Names in one frame."""

MAX_BODY_BYTES: Final = MAX_NAMES * NAME_BYTES
MAX_BASES: Final = 32
MAX_TEXT: Final = 256
"""Characters of an epoch or a model's name in a `Hello`."""

_HEADER_BYTES: Final = 5


class StreamError(ValueError):
    """What came is no feed of this version; the message names the fault, never the content."""


def namespace_key(seed: bytes, namespace: str) -> bytes:
    """Return the key of a namespace's feeds from the operator's seed."""
    return _derived(seed, f"namespace {namespace}")


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """What a namespace's key is used for: ``names`` for hashes, ``door`` to be let in."""

    names: bytes = field(repr=False)
    door: bytes = field(repr=False)

    @classmethod
    def of(cls, key: bytes) -> BlockKeys:
        """Derive both from the namespace's key; raise `ValueError` at a wrong length."""
        return cls(_derived(key, "names"), _derived(key, "door"))

    @classmethod
    def from_hex(cls, text: str) -> BlockKeys | None:
        """Derive both from a key as it travels; None where there is none or it can't be read."""
        try:
            return cls.of(bytes.fromhex(text))
        except ValueError:
            return None


def _derived(key: bytes, label: str) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key must have {KEY_BYTES} bytes")
    return hmac.digest(key, f"promptprefix blocks 1\n{label}\n".encode(), "sha256")


def root_name(keys: BlockKeys, adapter: str = "", salt: str = "") -> bytes:
    """Return what stands for the parent of a prompt's first block.

    ``adapter`` is the LoRA adapter's name as requests name it; empty for the base model, under
    whichever of its names (`Hello.bases`). ``salt`` is the request's cache salt.
    """
    scope = "".join(f"{len(text)}:{text}" for text in (adapter, salt))
    hashed = hashlib.blake2b(
        scope.encode("utf-8", "surrogatepass"),
        digest_size=NAME_BYTES,
        key=keys.names,
        person=b"root",
    )
    return hashed.digest()


def chain(
    keys: BlockKeys, parent: bytes, tokens: bytes | Sequence[int], block_size: int
) -> list[bytes]:
    """Return the names of the whole blocks of ``tokens``, which continue ``parent``.

    Place ``n`` has the name of depth ``n + 1``. ``tokens`` are ids, or their `token_bytes`.
    """
    if block_size < 1:
        raise ValueError("a block has at least one token")
    data = tokens if isinstance(tokens, bytes) else token_bytes(tokens)
    size = block_size * TOKEN_BYTES
    hashed, key, names = hashlib.blake2b, keys.names, []
    for end in range(size, len(data) + 1, size):
        parent = hashed(parent + data[end - size : end], digest_size=NAME_BYTES, key=key).digest()
        names.append(parent)
    return names


@dataclass(frozen=True, slots=True)
class Hello:
    """Begins a feed, and begins it anew where it comes again: nothing said before it holds.

    ``epoch`` is the engine's. ``block_size`` is in tokens; 0 if it isn't known yet, and then no
    names follow. ``bases`` are the names that requests may give the base model. ``complete``: all
    that the engine's cache holds is told; else what it stored before may be missing.
    """

    epoch: str
    block_size: int
    every: int
    bases: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Added:
    """These are held now. One may be told of that is held already."""

    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """These are no longer held. One may be told of that isn't known."""

    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Whole:
    """All that was held at the `Hello` has been told."""


@dataclass(frozen=True, slots=True)
class Alive:
    """There is no news."""


Frame = Hello | Added | Removed | Cleared | Whole | Alive

_EMPTY: Final[Mapping[bytes, Frame]] = {b"C": Cleared(), b"W": Whole(), b"L": Alive()}
_KINDS: Final = {Cleared: b"C", Whole: b"W", Alive: b"L"}


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes; raise `ValueError` where it is out of bounds."""
    match frame:
        case Hello():
            return _packed(b"H", _hello_body(frame))
        case Added(names):
            return _packed(b"A", _names_body(names))
        case Removed(names):
            return _packed(b"R", _names_body(names))
    return _packed(_KINDS[type(frame)], b"")


def added(names: Iterable[bytes]) -> Iterator[bytes]:
    """Return the frames, encoded, that tell of any number of held names."""
    return (encode(Added(part)) for part in _parts(names))


def removed(names: Iterable[bytes]) -> Iterator[bytes]:
    """Return the frames, encoded, that tell of any number of names that went."""
    return (encode(Removed(part)) for part in _parts(names))


class Decoder:
    """Reads one feed, however its bytes are cut. Keeps one unfinished frame at most."""

    def __init__(self, every: int) -> None:
        """Read the answer to a question with this ``every``."""
        self._every = every
        self._rest = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes; raise `StreamError`, and no more after it."""
        rest = self._rest
        rest += data
        frames: list[Frame] = []
        start = 0
        while len(rest) - start >= _HEADER_BYTES:
            length = int.from_bytes(rest[start + 1 : start + _HEADER_BYTES], "big")
            if length > MAX_BODY_BYTES:
                raise StreamError(f"a frame of {length} bytes; {MAX_BODY_BYTES} are allowed")
            body = start + _HEADER_BYTES
            if body + length > len(rest):
                break
            kind = bytes(rest[start : start + 1])
            frame = self._frame(kind, bytes(rest[body : body + length]))
            if frame is not None:
                frames.append(frame)
            start = body + length
        del rest[:start]
        return frames

    def _frame(self, kind: bytes, body: bytes) -> Frame | None:
        if kind == b"H":
            hello = _hello(body)
            if hello.every != self._every:
                raise StreamError(f"a feed of every {hello.every} blocks, not {self._every}")
            self._greeted = True
            return hello
        if not self._greeted:
            raise StreamError("a feed begins with its version")
        if kind == b"A":
            return Added(_names(body))
        if kind == b"R":
            return Removed(_names(body))
        if kind in _EMPTY and body:
            raise StreamError(f"a frame of kind {kind.decode()} has no body")
        return _EMPTY.get(kind)


def _packed(kind: bytes, body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a frame has at most {MAX_BODY_BYTES} bytes")
    return kind + len(body).to_bytes(_HEADER_BYTES - 1, "big") + body


def _parts(names: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    part: list[bytes] = []
    for name in names:
        part.append(name)
        if len(part) == MAX_NAMES:
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _names_body(names: Sequence[bytes]) -> bytes:
    body = b"".join(names)
    if any(len(name) != NAME_BYTES for name in names):
        raise ValueError(f"a name has {NAME_BYTES} bytes")
    return body


def _names(body: bytes) -> tuple[bytes, ...]:
    if len(body) % NAME_BYTES:
        raise StreamError(f"names of {NAME_BYTES} bytes do not fill {len(body)} bytes")
    return tuple(body[at : at + NAME_BYTES] for at in range(0, len(body), NAME_BYTES))


def _hello_body(hello: Hello) -> bytes:
    fields = {
        "version": STREAM_VERSION,
        "epoch": hello.epoch[:MAX_TEXT],
        "block_size": hello.block_size,
        "every": hello.every,
        "bases": [name for name in hello.bases if len(name) <= MAX_TEXT][:MAX_BASES],
        "complete": hello.complete,
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _hello(body: bytes) -> Hello:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise StreamError("a greeting that is no JSON") from error
    if not isinstance(fields, dict) or fields.get("version") != STREAM_VERSION:
        raise StreamError(f"a feed of another version than {STREAM_VERSION}")
    bases = fields.get("bases")
    if not isinstance(bases, list) or not all(isinstance(name, str) for name in bases):
        raise StreamError("a greeting without names of the base model")
    epoch, complete = fields.get("epoch"), fields.get("complete")
    if not isinstance(epoch, str) or not isinstance(complete, bool):
        raise StreamError("a greeting without epoch or completeness")
    block_size, every = _whole(fields.get("block_size")), _whole(fields.get("every"))
    return Hello(epoch, block_size, every, tuple(bases), complete)


def _whole(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < 2**31:
        return raw
    raise StreamError("a greeting without block size or step")
