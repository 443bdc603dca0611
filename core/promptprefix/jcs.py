"""RFC 8785 serialisation, by Python's own encoder where that writes the same bytes.

The two differ in floating-point numbers and in the order of keys with characters beyond U+FFFF
(JCS sorts by UTF-16 code units). Prompts and tool schemas have neither as a rule, and the encoder
in C is several times as fast.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import rfc8785

if TYPE_CHECKING:
    from promptprefix.canonical import JsonValue


def jcs(value: JsonValue) -> bytes:
    """Return the canonical ``value`` as JCS in UTF-8.

    Raises `rfc8785.CanonicalizationError` for what JCS can't hold.
    """
    if not _same_bytes(value):
        return rfc8785.dumps(value)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def _same_bytes(value: JsonValue) -> bool:
    """Whether ``value`` is made of what both encoders write alike."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if not all(key.isascii() or max(key) <= "\uffff" for key in item):
                return False
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int):
            if abs(item) >= 2**53:
                return False
        elif item is not None and not isinstance(item, str):
            return False
    return True
