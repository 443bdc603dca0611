"""The slices of a body that decide its fingerprint, cut out by what its API's `Shape` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from promptprefix.request import SALT_FIELD
from promptprefix.shapes.reading import SYSTEM_ROLES, TOKENS_FIELD, TRANSFER_FIELD
from promptprefix.shapes.shape import Shape, Turns

ABSENT = msgspec.Raw()

_SET = b"true"
_UNSET = (b"", b"null", b"false")
TEXT = b'""'
USER_TURN = b'[{"role":"user"}]'
_SYSTEM_TURN = b'[{"role":"system"}]'
_OWN_TOKENS = b'{"%s":true}' % TOKENS_FIELD.encode()


class _Turn(msgspec.Struct):
    role: Any = None


class _Transfer(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = ABSENT


_CONVERSATIONS: Mapping[Turns, Any] = {
    Turns.FIRST: list[msgspec.Raw],
    Turns.FIRST_OR_TEXT: str | list[msgspec.Raw],
    Turns.ROLES: list[_Turn],
}
_TURN_DECODER = msgspec.json.Decoder(_Turn)
_TRANSFER_DECODER = msgspec.json.Decoder(_Transfer | None)


@dataclass(frozen=True, slots=True)
class BodySlices:
    """Raw JSON of a body: its model, its salt, and what else decides, by name."""

    model: msgspec.Raw
    salt: msgspec.Raw
    parts: tuple[tuple[str, bytes], ...]


class BodySlicer:
    """Cuts bodies of one API in a single pass; what doesn't decide is skipped."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        names = ("model", SALT_FIELD, TRANSFER_FIELD, *shape.values, *shape.markers)
        fields = [(name, msgspec.Raw, ABSENT) for name in names]
        struct = msgspec.defstruct(
            "Body", [(shape.conversation, _CONVERSATIONS[shape.turns]), *fields]
        )
        self._decoder = msgspec.json.Decoder(struct)
        self._fields = attrgetter(
            shape.conversation, "model", SALT_FIELD, TRANSFER_FIELD, *shape.values, *shape.markers
        )
        self._names = (*shape.values, *shape.markers)

    def cut(self, body: bytes) -> BodySlices:
        """Return the slices; raise `ValueError` or `RecursionError` for no request of the API."""
        shape = self._shape
        turns, model, salt, transfer, *others = self._fields(self._decoder.decode(body))
        parts = [(shape.conversation, _turns(turns))]
        for name, raw in zip(self._names, others, strict=True):
            # Most are absent.
            if raw is ABSENT:
                continue
            if name not in shape.markers:
                parts.append((name, bytes(raw)))
            elif bytes(raw) not in _UNSET:
                parts.append((name, _SET))
        if transfer and _brings_tokens(transfer):
            parts.append((TRANSFER_FIELD, _OWN_TOKENS))
        return BodySlices(model, salt, tuple(parts))


def _turns(conversation: str | list[msgspec.Raw] | list[_Turn]) -> bytes:
    """Return what of the conversation decides, as JSON: the same for all user turns."""
    if isinstance(conversation, str):
        return TEXT
    if not conversation:
        raise ValueError("no turns")
    first = conversation[0]
    if not isinstance(first, msgspec.Raw):
        inline = any(turn.role == "system" for turn in conversation if isinstance(turn, _Turn))
        return _SYSTEM_TURN if inline else USER_TURN
    role = _TURN_DECODER.decode(first).role
    return b"[%s]" % bytes(first) if role in SYSTEM_ROLES else USER_TURN


def _brings_tokens(transfer: msgspec.Raw) -> bool:
    found = _TRANSFER_DECODER.decode(transfer)
    return found is not None and bytes(found.prompt_token_ids) not in (b"", b"null")
