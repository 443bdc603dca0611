"""Fingerprint: when a declared prefix and a request, or two prefixes, mean the same.

``pp1:sha256:`` and the SHA-256 of the canonical bytes of
``{"model", "options", "system", "tools"}``. ``pp1`` is the version of this rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from promptprefix.canonical import CanonicalError, JsonValue, canonical_bytes
from promptprefix.payload import Payload, PayloadError

FINGERPRINT_VERSION = "pp1"


def fingerprint(
    model: str,
    system: str,
    tools: Sequence[JsonValue],
    options: Mapping[str, JsonValue],
) -> str:
    """Return the fingerprint; raise `CanonicalError` if a value has no canonical form."""
    value = canonical_bytes({"model": model, "options": options, "system": system, "tools": tools})
    return f"{FINGERPRINT_VERSION}:sha256:{hashlib.sha256(value).hexdigest()}"


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
