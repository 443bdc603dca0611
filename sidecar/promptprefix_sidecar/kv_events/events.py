"""KV events as the sidecar understands them: what the engine stored in its prefix cache or gave up.

One engine tells blocks apart by hash and KV group; a block's hash stands for all tokens before it
too, so equal hashes are equal prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GPU = "GPU"
"""Medium of the cache that requests are computed in; all others hold copies outside it."""

BlockHash = bytes | int | str


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks, the first of which continues ``parent`` (None: it begins a prompt).

    ``tokens`` are `token_bytes` of all of them, or empty where the engine doesn't say. ``lora`` is
    the adapter's name, "" for the base model. ``salt`` is the cache salt of a first block, a
    secret. ``lora`` and ``salt`` are None where the engine mixed into the hash what no plain text
    has (an image, say). ``kind`` names the kind of attention of the group; empty if not said.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    tokens: bytes = field(repr=False)
    block_size: int
    medium: str = GPU
    lora: str | None = ""
    salt: str | None = field(default="", repr=False)
    group: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that left a medium; each stands for one copy."""

    hashes: tuple[BlockHash, ...]
    medium: str = GPU
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole prefix cache was emptied."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step of the engine did. ``rank`` is its data-parallel rank.

    ``unknown`` counts events of kinds that the sidecar doesn't know, ``broken`` known ones that
    can't be read.
    """

    at: float
    events: tuple[Event, ...]
    rank: int = 0
    unknown: int = 0
    broken: int = 0
