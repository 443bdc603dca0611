"""The keys of the feeds of block names: one for each namespace, all from the operator's seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from promptprefix.block_stream import KEY_BYTES, namespace_key
from promptprefix.wire import BlocksKey


@dataclass(frozen=True)
class BlockKeyring:
    """Tells keys. Without a seed, of an operator that keeps no Secret, there are none."""

    seed: bytes = field(default=b"", repr=False)

    def of(self, namespace: str) -> str:
        """Return a namespace's key in hexadecimal; empty if there is none."""
        if len(self.seed) != KEY_BYTES:
            return ""
        return namespace_key(self.seed, namespace).hex()

    def routed(self, namespaces: Iterable[str]) -> tuple[BlocksKey, ...]:
        """Return the keys of these namespaces as routers are told them."""
        keys = ((each, self.of(each)) for each in sorted(set(namespaces)))
        return tuple(BlocksKey(namespace=each, key=key) for each, key in keys if key)


NO_KEYS = BlockKeyring()
