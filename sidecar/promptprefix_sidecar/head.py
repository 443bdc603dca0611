"""The token-clean head of a declared text on one engine: cut from probes, kept as bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from promptprefix.reasons import Reason
from promptprefix.tokens import common_head, token_bytes, token_digest, whole_blocks
from promptprefix.wire import HEAD_LADDER

LADDER_CHARS = 12
EDGE_MARGIN = 4
"""When the head ends fewer tokens than this after a block, `EDGE_USER_TURNS` are asked too."""

EDGE_USER_TURNS = (
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    *("\t", "\r\n", "  ", "\n\n", "s", "e", "ing", "'s", "00", "é", "\u0301", "\u200d", "한", "ا"),
)
"""User turns that begin with what a tokenizer may merge with a template's last characters.

Punctuation merges with punctuation ("User:" and "("), letters with letters, blanks with blanks, a
combining mark with anything. They matter only where the head's end is also a block's end.
"""


@dataclass(frozen=True)
class Head:
    """``prompt`` holds the head and one token more, as `token_bytes`; ``tokens`` counts the head.

    The extra token makes every block of the head one that a later request finds in the cache.
    ``ladder`` are digests of its first `HEAD_LADDER` blocks.
    """

    prompt: bytes
    tokens: int
    digest: str
    ladder: tuple[str, ...] = ()

    @property
    def prompt_ids(self) -> list[int]:
        """The ids to send: the head and one token more."""
        return list(struct.unpack(f"<{self.tokens + 1}I", self.prompt))


class HeadError(Exception):
    """The declared text has no reusable head here; ``reason`` is a condition reason."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def near_block_edge(probes: Sequence[Sequence[int]], block_size: int) -> bool:
    """Return whether a merge at the head's end could reach into its last whole block."""
    length = len(common_head(probes))
    return length >= block_size and length % block_size < EDGE_MARGIN


def clean_head(probes: Sequence[Sequence[int]], block_size: int) -> Head:
    """Return the head that all ``probes`` share, in whole blocks, or raise `HeadError`.

    ``probes``: token ids of renderings that differ only in the user turn, at least two.
    """
    shared = common_head(probes)
    head = whole_blocks(shared, block_size)
    if not head:
        raise HeadError(Reason.NO_STATIC_HEAD, _why_no_head(probes, len(shared), block_size))
    longest = max(probes, key=len)
    extra = longest[len(head)] if len(longest) > len(head) else head[-1]
    return Head(
        prompt=token_bytes([*head, extra]),
        tokens=len(head),
        digest=token_digest(head),
        ladder=head_ladder(head, block_size),
    )


def head_ladder(head: Sequence[int], block_size: int) -> tuple[str, ...]:
    """Return the digests of the first `HEAD_LADDER` blocks, as far as they fit."""
    running = hashlib.sha256()
    digests: list[str] = []
    done = 0
    for blocks in HEAD_LADDER:
        end = blocks * block_size
        if end > len(head):
            break
        running.update(token_bytes(head[done:end]))
        digests.append(running.hexdigest()[:LADDER_CHARS])
        done = end
    return tuple(digests)


def _why_no_head(probes: Sequence[Sequence[int]], shared: int, block_size: int) -> str:
    shortest = min(len(probe) for probe in probes)
    found = f"only {shared} tokens come before the user turn"
    if shortest - shared >= block_size:
        return (
            f"{found} and at least {shortest - shared} from there on: the chat template mixes "
            "system text or tools into the user turn or puts them after it; use a template that "
            "renders them first"
        )
    return (
        f"{found}, less than one KV block of {block_size}: the prefix is too short to be reused; "
        "declare a longer text"
    )
