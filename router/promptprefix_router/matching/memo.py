"""Remembers what requests declare, by the raw bytes that decide it.

A client that adds a tail of its own to its system text sends other bytes in every request, but the
same tools: what is costly to bring into canonical form is remembered by itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import Frame, system_bytes
from promptprefix.request import Surroundings, UndeclaredError
from promptprefix_router.matching.request_head import DeclaringHead

NO_FINGERPRINT = ""
NO_FRAME = b""

NOT_CANONICAL = "not-canonical"
"""Why a request is undeclared that has no canonical form; the other words are those of `Cause`."""

TOO_LARGE = "too-large"
"""Why a request is undeclared whose model, options and tools are larger than any declared ones."""

LEAST_SHARE = 3
"""The canonical form has at least a third of the bytes of another one without white space and
escapes: three bytes of UTF-8 can become one in NFC, two characters of a line end become one, and
``1.0`` becomes ``1``."""

FRAME_BYTES = 16 * 1024 * 1024
"""Canonical bytes of models, options and tools that are remembered."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a request declares: its fingerprint, and the digest of its `Frame`.

    Without a fingerprint ``cause`` is a fixed word that says why.
    """

    fingerprint: str = NO_FINGERPRINT
    frame: bytes = NO_FRAME
    cause: str = ""


@dataclass(frozen=True, slots=True)
class _Framed:
    frame: Frame
    digest: bytes

    @property
    def size(self) -> int:
        return self.frame.size


class FrameMemo:
    """Frames by raw bytes, as many as ``capacity`` bytes hold; the least recently used goes first.

    What has no frame is remembered too. Nothing is brought into canonical form that can't be as
    small as ``largest``, the bytes of the largest frame of interest.
    """

    def __init__(self, capacity: int = FRAME_BYTES) -> None:
        self._capacity = capacity
        self.largest = math.inf
        self._entries: OrderedDict[bytes, _Framed | str] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes that are remembered."""
        return self._size

    def frame(self, head: DeclaringHead, key: bytes) -> tuple[Frame, bytes] | str:
        """Return the frame and its digest, or why there is none."""
        known = self._entries.get(key)
        if known is None:
            known = _framed(head, self.largest)
            self._keep(key, known)
        else:
            self._entries.move_to_end(key)
        return known if isinstance(known, str) else (known.frame, known.digest)

    def forget_too_large(self) -> None:
        """Look anew at all that was too large."""
        for key in [key for key, entry in self._entries.items() if entry == TOO_LARGE]:
            self._size -= _size(self._entries.pop(key))

    def _keep(self, key: bytes, entry: _Framed | str) -> None:
        if _size(entry) > self._capacity // _MOST:
            return
        self._entries[key] = entry
        self._size += _size(entry)
        while self._size > self._capacity:
            _, gone = self._entries.popitem(last=False)
            self._size -= _size(gone)


_MOST = 8
"""What would take more than this part of the room is not remembered."""
_OVERHEAD = 512
"""Bytes of an entry beside its frame, roughly."""


def _size(entry: _Framed | str) -> int:
    return _OVERHEAD if isinstance(entry, str) else _OVERHEAD + entry.size


def _framed(head: DeclaringHead, largest: float) -> _Framed | str:
    try:
        around = head.surroundings()
        if math.isfinite(largest) and _raw_size(head) > largest and _least_size(around) > largest:
            return TOO_LARGE
        frame = around.frame
    except UndeclaredError as error:
        return error.cause
    except CanonicalError:
        return NOT_CANONICAL
    return _Framed(frame, frame.digest)


def _raw_size(head: DeclaringHead) -> int:
    return sum(len(raw) for _, raw in head.around)


def _least_size(around: Surroundings) -> float:
    """Return how many bytes a frame has at least, in a fraction of the time that it takes.

    Raises `CanonicalError` for some values that have none.
    """
    try:
        encoded = msgspec.json.encode((around.model, around.options, around.tools))
    except (ValueError, OverflowError, RecursionError) as error:
        raise CanonicalError("no value of JSON") from error
    return len(encoded) / LEAST_SHARE


class FingerprintMemo:
    """What requests declare by all raw bytes that decide; the least recently used goes first."""

    def __init__(self, capacity: int, frames: FrameMemo | None = None) -> None:
        self._capacity = capacity
        self._frames = frames or FrameMemo()
        self._entries: OrderedDict[bytes, Reading] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def bound(self, largest: float) -> None:
        """Take note that no frame larger than so many bytes is of interest."""
        if largest > self._frames.largest:
            self._frames.forget_too_large()
            for key in [key for key, each in self._entries.items() if each.cause == TOO_LARGE]:
                del self._entries[key]
        self._frames.largest = largest

    def read(self, head: DeclaringHead) -> tuple[Reading, bytes | None]:
        """Return what ``head`` declares, and its `system_bytes` if they had to be made for it."""
        frame_key, key = head.keys
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
            self.hits += 1
            return known, None
        self.misses += 1
        reading, system = self._read(head, frame_key)
        self._entries[key] = reading
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return reading, system

    def _read(self, head: DeclaringHead, frame_key: bytes) -> tuple[Reading, bytes | None]:
        found = self._frames.frame(head, frame_key)
        if isinstance(found, str):
            return Reading(cause=found), None
        frame, digest = found
        try:
            system = system_bytes(head.system())
        except UndeclaredError as error:
            return Reading(cause=error.cause), None
        except CanonicalError:
            return Reading(cause=NOT_CANONICAL), None
        return Reading(frame.fingerprint(system), digest), system
