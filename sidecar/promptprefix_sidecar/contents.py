"""Declared texts by digest: fetched once, kept while they are wanted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from promptprefix.payload import Payload

MAX_CHARS = 16 * 1024 * 1024
"""Characters kept at most; beyond it the least recently used texts are fetched again."""


class ContentSource(Protocol):
    """Where texts come from."""

    async def content(self, digest: str) -> Payload:
        """Return the text with this content digest."""


class Contents:
    """A bounded cache before the control API.

    Texts of wanted placements stay while the operator is away, so that an engine restart can be
    healed without it.
    """

    def __init__(self, source: ContentSource, max_chars: int = MAX_CHARS) -> None:
        self._source = source
        self._max_chars = max_chars
        self._texts: OrderedDict[str, Payload] = OrderedDict()

    async def get(self, digest: str) -> Payload:
        """Return the text; raises what the source raises."""
        payload = self._texts.get(digest)
        if payload is None:
            payload = await self._source.content(digest)
        self._texts[digest] = payload
        self._texts.move_to_end(digest)
        while len(self._texts) > 1 and self.chars > self._max_chars:
            self._texts.popitem(last=False)
        return payload

    def keep(self, digests: frozenset[str]) -> None:
        """Drop the texts that no placement needs."""
        for digest in self._texts.keys() - digests:
            del self._texts[digest]

    @property
    def chars(self) -> int:
        """Characters held now."""
        return sum(_chars(payload) for payload in self._texts.values())


def _chars(payload: Payload) -> int:
    return sum(
        map(
            len,
            (
                payload.systemInstructions,
                payload.toolDefinitions,
                payload.defaultModeSpecs,
                payload.chatTemplateOptions,
            ),
        )
    )
