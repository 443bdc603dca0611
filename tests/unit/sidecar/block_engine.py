"""A prefix cache that tells of its blocks as vLLM does, copies and all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from promptprefix.block_stream import KEY_BYTES, BlockKeys, chain, root_name
from promptprefix.tokens import token_bytes
from promptprefix_sidecar.kv_events.events import Event, Removed, Stored

KEYS = BlockKeys.of(bytes(range(KEY_BYTES)))
SIZE = 2
"""Tokens of a block."""

Scope = tuple[str, str]
"""Adapter and cache salt."""


def names_of(tokens: Sequence[int], scope: Scope = ("", ""), keys: BlockKeys = KEYS) -> list[bytes]:
    return chain(keys, root_name(keys, *scope), tokens, SIZE)


def hashes_of(tokens: Sequence[int], scope: Scope = ("", "")) -> list[bytes]:
    found, parent = [], repr(scope).encode()
    for at in range(0, len(tokens) - SIZE + 1, SIZE):
        parent = hashlib.sha256(parent + token_bytes(tokens[at : at + SIZE])).digest()
        found.append(parent)
    return found


def stored(
    tokens: Sequence[int], after: int = 0, scope: Scope = ("", ""), group: int = 0, kind: str = ""
) -> Stored:
    """Return the event for the blocks of a prompt but for the first ``after``."""
    hashes = hashes_of(tokens, scope)
    return Stored(
        hashes=tuple(hashes[after:]),
        parent=hashes[after - 1] if after else None,
        tokens=token_bytes(tokens[after * SIZE : len(hashes) * SIZE]),
        block_size=SIZE,
        lora=scope[0],
        salt="" if after else scope[1],
        group=group,
        kind=kind,
    )


@dataclass
class BlockEngine:
    """``cached`` counts copies by hash."""

    cached: Counter[bytes] = field(default_factory=Counter)
    names: dict[bytes, bytes] = field(default_factory=dict)

    def compute(
        self, tokens: Sequence[int], scope: Scope = ("", ""), *, blind: bool = False
    ) -> list[Event]:
        """Serve a prompt; ``blind``: beside another one, whose blocks it doesn't find."""
        hashes = hashes_of(tokens, scope)
        hit = 0
        while not blind and hit < len(hashes) and self.cached[hashes[hit]]:
            hit += 1
        self.names.update(zip(hashes, names_of(tokens, scope), strict=True))
        self.cached.update(hashes[hit:])
        return [stored(tokens, hit, scope)] if hit < len(hashes) else []

    def evict(self, number: int) -> list[Event]:
        """Give up one copy of some block."""
        copies = list(self.cached.elements())
        if not copies:
            return []
        gone = copies[number % len(copies)]
        self.cached[gone] -= 1
        return [Removed((gone,))]

    @property
    def held(self) -> set[bytes]:
        """Names of the blocks that are cached."""
        return {self.names[block] for block, copies in self.cached.items() if copies}
