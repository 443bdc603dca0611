"""The tokens of a prompt as its engine reads them, and the names of their blocks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from promptprefix.block_stream import BlockKeys, chain, root_name
from promptprefix.tokens import TOKEN_BYTES, token_bytes

MOST_BLOCKS = 16_384
"""Blocks of a prompt that are named, some 20 ms of work; what is behind them decides nothing."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt's token ids (`token_bytes`), and what else decides the names of its blocks.

    ``model`` is the model, or the LoRA adapter, as the request names it. ``salt`` is the cache salt
    that the engine reads.
    """

    model: str
    tokens: bytes = field(repr=False)
    salt: str = field(default="", repr=False)
    _names: dict[tuple[int, int, bool], Sequence[bytes]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, model: str, tokens: Sequence[int], salt: str = "") -> PromptTokens:
        """Take token ids; raise `ValueError` for ones that no engine has."""
        try:
            return cls(model, token_bytes(tokens), salt)
        except struct.error as error:
            raise ValueError("token ids are unsigned numbers of 32 bits") from error

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.tokens) // TOKEN_BYTES

    def names(
        self, keys: BlockKeys, block_size: int, every: int, *, adapter: bool
    ) -> Sequence[bytes]:
        """Return the names of each ``every``-th whole block that an engine can reuse.

        An engine computes the last token anew. Of `MOST_BLOCKS` blocks at most. ``adapter``: the
        model's name is an adapter's. The keys are always the same.
        """
        kind = (block_size, every, adapter)
        known = self._names.get(kind)
        if known is not None:
            return known
        root = root_name(keys, self.model if adapter else "", self.salt)
        reusable = self.tokens[:-TOKEN_BYTES][: MOST_BLOCKS * block_size * TOKEN_BYTES]
        names = chain(keys, root, reusable, block_size)[every - 1 :: every]
        self._names[kind] = names
        return names
