"""Proof by the engine that a prefix is cached, without the pin plugin."""

from __future__ import annotations

from promptprefix_sidecar.engine_api import EngineApi, Prefilled
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.metrics import Metrics

TRIES = 3
"""The first request computes the prefix, the second finds it; one more against bad luck."""


class UnprovenError(Exception):
    """The engine gave no evidence that the prefix is cached; the message says what it gave."""


class Toucher:
    """Sends a prefix as an ordinary request and reads how much of it was cached."""

    def __init__(self, engine: EngineApi, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def touch(self, model: str, head: Head) -> int | None:
        """Return the cached tokens, or None where the engine doesn't say; raise `EngineError`."""
        done = await self._engine.prefill(model, head.prompt_ids)
        self.count(done)
        return done.cached_tokens

    async def prove(self, model: str, head: Head) -> None:
        """Return when the whole head was found cached; raise `UnprovenError` or `EngineError`."""
        cached: int | None = None
        for _ in range(TRIES):
            cached = await self.touch(model, head)
            if cached is None:
                cached = await self._touch_by_counters(model, head)
            if cached is not None and cached >= head.tokens:
                return
        if cached is None:
            raise UnprovenError(
                "the engine doesn't say what it has cached, and its counters moved for other "
                "requests too: start it with --enable-prompt-tokens-details"
            )
        raise UnprovenError(
            f"the engine had {cached} of {head.tokens} tokens cached right after computing them: "
            "its KV cache is too small for its traffic, or prefix caching is off"
        )

    async def _touch_by_counters(self, model: str, head: Head) -> int | None:
        """Ask the engine's counters: they speak of this request if they moved by its length."""
        before = await self._engine.metrics()
        done = await self._engine.prefill(model, head.prompt_ids)
        after = await self._engine.metrics()
        if done.cached_tokens is not None:  # some versions leave a zero out and say the rest
            self.count(done)
            return done.cached_tokens
        alone = after.cache_queries - before.cache_queries == done.prompt_tokens
        cached = after.cache_hits - before.cache_hits if alone else None
        self.count(done, cached)
        return cached

    def count(self, done: Prefilled, cached_tokens: int | None = None) -> None:
        """Count a request of the sidecar's own."""
        cached = done.cached_tokens if cached_tokens is None else cached_tokens
        self._metrics.own_prompt_tokens.inc(done.prompt_tokens)
        self._metrics.own_computed_tokens.inc(done.prompt_tokens - (cached or 0))
