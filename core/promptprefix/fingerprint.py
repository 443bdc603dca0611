"""Fingerprint: when a declared prefix and a request, or two prefixes, mean the same.

``pp1:sha256:`` and the SHA-256 of the canonical bytes of
``{"model", "options", "system", "tools"}``. ``pp1`` is the version of this rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptprefix.canonical import CanonicalError, JsonValue, canonical_bytes
from promptprefix.payload import Payload, PayloadError

FINGERPRINT_VERSION = "pp1"


@dataclass(frozen=True, slots=True)
class Frame:
    """The canonical bytes around a system text: those of the model, the options and the tools."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, model: str, tools: Sequence[JsonValue], options: Mapping[str, JsonValue]) -> Frame:
        """Return the frame; raise `CanonicalError` if a value has no canonical form."""
        named = canonical_bytes(model, "/model", 1)
        chosen = canonical_bytes(options, "/options", 1)
        callable_ = canonical_bytes(tools, "/tools", 1)
        return cls(
            b'{"model":%s,"options":%s,"system":' % (named, chosen), b',"tools":%s}' % callable_
        )

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return len(self.before) + len(self.after)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the frame: equal digests go with the same texts."""
        return hashlib.sha256(b"%d:%s%s" % (len(self.before), self.before, self.after)).digest()

    def fingerprint(self, system: bytes) -> str:
        """Return the fingerprint of a request with what `system_bytes` makes of its text."""
        whole = hashlib.sha256(self.before)
        whole.update(system)
        whole.update(self.after)
        return f"{FINGERPRINT_VERSION}:sha256:{whole.hexdigest()}"


def system_bytes(system: str) -> bytes:
    """Return the canonical bytes of a system text, a string of JSON.

    A text begins with another if its bytes begin with those of the other but for the last quote.
    Raises `CanonicalError`.
    """
    return canonical_bytes(system, "/system", 1)


def fingerprint(
    model: str,
    system: str,
    tools: Sequence[JsonValue],
    options: Mapping[str, JsonValue],
) -> str:
    """Return the fingerprint; raise `CanonicalError` if a value has no canonical form."""
    return Frame.of(model, tools, options).fingerprint(system_bytes(system))


def payload_fingerprint(model: str, payload: Payload) -> str:
    """Return the fingerprint of a declared payload.

    Raises `PayloadError` that names the field: a content field, or ``model``.
    """
    try:
        return fingerprint(model, payload.system, payload.tools, payload.options)
    except CanonicalError as error:
        field, reason = _culprit(error.path)
        raise PayloadError(field, str(error), reason, _unquoted(error)) from error


def _unquoted(error: CanonicalError) -> str:
    """Say what is wrong and in which tool: the rest of the path are keys of the text."""
    match error.path.split("/"):
        case ["", "tools", index, *_]:
            return f"{error.unquoted} (in tool {index})"
    return error.unquoted


def _culprit(path: str) -> tuple[str, str]:
    if path.startswith("/tools"):
        return "toolDefinitions", "InvalidTools"
    if path.startswith("/options"):
        return "chatTemplateOptions", "InvalidContent"
    if path.startswith("/model"):
        return "model", "InvalidSpec"
    return "systemInstructions", "InvalidContent"
