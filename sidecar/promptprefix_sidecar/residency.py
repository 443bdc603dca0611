"""Proof by the engine that a prefix is cached, without a pin."""

from __future__ import annotations

from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.exposition import DEVICE
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.own_traffic import OwnTraffic
from promptprefix_sidecar.prefilling import Prefiller
from promptprefix_sidecar.provenance import UNATTRIBUTED, Progress, origin

TRIES = 3
"""The first request computes the prefix, the second finds it; one more against bad luck."""


class UnprovenError(Exception):
    """The engine gave no evidence that the prefix is cached; the message says what it gave."""


class Toucher:
    """Sends a prefix as a request of its own and reads how much of it was cached."""

    def __init__(self, engine: EngineApi, prefiller: Prefiller, traffic: OwnTraffic) -> None:
        self._engine = engine
        self._prefiller = prefiller
        self._traffic = traffic

    async def touch(
        self, model: str, head: Head, cache_salt: str, *, report_cached: bool = False
    ) -> int | None:
        """Return the cached tokens, or None where the engine doesn't say; raise `EngineError`.

        It ends at the first chunk that was not cached whole: bringing it back is no touch.
        """
        cached: int | None = None
        async for end, done in self._prefiller.chunks(
            model, head, cache_salt, report_cached=report_cached
        ):
            cached = done.cached_tokens
            if cached is not None and cached < end:
                break
        return cached

    async def prove(self, model: str, head: Head, cache_salt: str) -> Progress:
        """Return when the whole head was found cached; raise `UnprovenError` or `EngineError`."""
        cached: int | None = None
        progress = Progress()
        for _ in range(TRIES):
            async for end, done in self._prefiller.chunks(model, head, cache_salt):
                cached = done.cached_tokens
                progress = progress.plus(end, done)
            if cached is None:
                cached = await self._touch_by_counters(model, head, cache_salt)
            if cached is not None and cached >= head.tokens:
                return progress
        if cached is None:
            raise UnprovenError(
                "the engine doesn't say what it has cached, and its counters moved for other "
                "requests too: start it with --enable-prompt-tokens-details"
            )
        raise UnprovenError(
            f"the engine had {cached} of {head.tokens} tokens cached right after computing them: "
            "its KV cache is too small for its traffic, or prefix caching is off"
        )

    async def from_tier(self, model: str, head: Head, cache_salt: str) -> bool:
        """Return whether a tier behind GPU memory gave the head, which was just evicted from it."""
        before = await self._engine.metrics()
        progress = Progress()
        async for end, done in self._prefiller.chunks(model, head, cache_salt):
            progress = progress.plus(end, done)
        after = await self._engine.metrics()
        found = origin(progress, before.cached_by_source, after.cached_by_source).cached
        tiers = (count for source, count in found.items() if source not in (DEVICE, UNATTRIBUTED))
        return sum(tiers) >= head.tokens

    async def _touch_by_counters(self, model: str, head: Head, cache_salt: str) -> int | None:
        """Ask the engine's counters: they speak of this request if they moved by its length."""
        before = await self._engine.metrics()
        done = await self._prefiller.ask(model, head.prompt_ids, cache_salt)
        after = await self._engine.metrics()
        if done.cached_tokens is not None:  # some versions leave a zero out and say the rest
            self._traffic.count(done)
            return done.cached_tokens
        alone = after.cache_queries - before.cache_queries == done.prompt_tokens
        cached = after.cache_hits - before.cache_hits if alone else None
        self._traffic.count(done, cached)
        return cached
