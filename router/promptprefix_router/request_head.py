"""What the picker reads of a request body: raw slices, so that nothing else costs time.

The slices decide the fingerprint, so their bytes are the key under which it is remembered.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from promptprefix.canonical import JsonValue, parse_json
from promptprefix.request import SALT_FIELD, UNDECLARED_FIELDS, chat_immutable_part
from promptprefix_router.command_guard import has_escaped_letters

ABSENT = msgspec.Raw()

_PART_NAMES = (
    "model",
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    *UNDECLARED_FIELDS,
)
_QUOTED_NAMES = {name: f'"{name}"'.encode() for name in (*_PART_NAMES, SALT_FIELD)}
_MODEL_TEXT = re.compile(rb'"model"\s*:\s*"([^"\\]{1,512})"')


class MalformedError(ValueError):
    """The body is no request of its API; the engine will say so."""


class _ModelBody(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT


class _ChatBody(_ModelBody):
    messages: list[msgspec.Raw] = []
    tools: msgspec.Raw = ABSENT
    tool_choice: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT


BodyT = TypeVar("BodyT", bound=_ModelBody)

_MODEL_DECODER = msgspec.json.Decoder(_ModelBody)
_CHAT_DECODER = msgspec.json.Decoder(_ChatBody)
_TEXT_DECODER = msgspec.json.Decoder(str)


NO_SALT = ""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request of any API says of itself.

    ``salt`` is its cache salt: `NO_SALT` without one, None if it is nothing that an engine takes.
    """

    model: str
    salt: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChatHead(RequestHead):
    """The parts of a chat completion that come before the first user turn, as raw JSON."""

    parts: tuple[tuple[str, bytes], ...]
    ambiguous: bool
    """Whether a name of a part, or of the salt, stands twice somewhere, or in escapes."""

    @property
    def key(self) -> bytes:
        """Digest of the raw parts: equal keys have equal fingerprints."""
        digest = hashlib.sha256()
        for name, raw in self.parts:
            digest.update(b"%s %d " % (name.encode(), len(raw)))
            digest.update(raw)
        return digest.digest()

    def fingerprint(self) -> str:
        """Compute the fingerprint, strictly.

        Raises `UndeclaredError` or `CanonicalError` for a request that no prefix can match.
        """
        body: dict[str, JsonValue] = {name: parse_json(raw) for name, raw in self.parts}
        if "messages" in body:
            body["messages"] = [body["messages"]]
        return chat_immutable_part(body).fingerprint


def read_chat(body: bytes) -> ChatHead:
    """Return the head of a chat completion; raise `MalformedError`."""
    decoded = _decode(_CHAT_DECODER, body)
    parts = [("model", bytes(decoded.model))]
    if decoded.messages:
        parts.append(("messages", bytes(decoded.messages[0])))
    for name in _PART_NAMES[2:]:
        raw = getattr(decoded, name)
        if raw:
            parts.append((name, bytes(raw)))
    model = _text(decoded.model)
    if model is None or not decoded.messages:
        raise MalformedError("no model or no messages")
    present = [name for name, _ in parts]
    if decoded.cache_salt:
        present.append(SALT_FIELD)
    return ChatHead(
        model=model,
        salt=_salt(decoded.cache_salt),
        parts=tuple(parts),
        ambiguous=_ambiguous(body, present),
    )


def read_head(body: bytes) -> RequestHead:
    """Return the head of a request of any API; raise `MalformedError`."""
    decoded = _decode(_MODEL_DECODER, body)
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


def _ambiguous(body: bytes, names: list[str]) -> bool:
    return has_escaped_letters(body) or any(body.count(_QUOTED_NAMES[name]) > 1 for name in names)


def _decode(decoder: msgspec.json.Decoder[BodyT], body: bytes) -> BodyT:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise MalformedError("not a JSON object of the expected shape") from error


def _salt(raw: msgspec.Raw) -> str | None:
    if not raw or bytes(raw) == b"null":
        return NO_SALT
    return _text(raw) or None


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _TEXT_DECODER.decode(raw) if raw else None
    except (msgspec.MsgspecError, ValueError):
        return None
