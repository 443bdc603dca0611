"""The token-clean prefix: the head that every request with a declared text shares."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

PROBE_USER_TURNS = ("a", "1", " ", "\n", "你", "🙂")
"""First characters of the user turns whose renderings are compared.

A tokenizer may merge the template's last characters with the first of the user's text; a letter,
a digit, a space, a newline, a CJK sign and an emoji cover the classes on which byte-level and
SentencePiece tokenizers split.
"""


def common_head(probes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the longest token prefix that all ``probes`` share."""
    if not probes:
        return ()
    # What the smallest and the largest in lexical order share, all between them share.
    ordered = [tuple(probe) for probe in probes]
    low, high = min(ordered), max(ordered)
    for index, (one, other) in enumerate(zip(low, high, strict=False)):
        if one != other:
            return low[:index]
    return low


def whole_blocks(head: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Return ``head`` cut down to whole KV blocks of ``block_size`` tokens."""
    return tuple(head[: len(head) - len(head) % block_size])


TOKEN_BYTES = 4
"""Of one id in `token_bytes`."""


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Return the ids as consecutive 4-byte little-endian unsigned integers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the token digest: SHA-256 (hex) of `token_bytes`."""
    return hashlib.sha256(token_bytes(token_ids)).hexdigest()


def estimate_tokens(text: str) -> int:
    """Return a rough count, UTF-8 bytes over four, for places without a tokenizer."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4
