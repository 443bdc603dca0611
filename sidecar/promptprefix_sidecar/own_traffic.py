"""The sidecar's own requests, told apart from users' in every number."""

from __future__ import annotations

from promptprefix_sidecar.engine_api import Prefilled
from promptprefix_sidecar.metrics import Metrics


class OwnTraffic:
    """Counts every request that the sidecar sends itself."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def count(self, done: Prefilled, cached_tokens: int | None = None) -> None:
        """Count one; ``cached_tokens`` where the engine's answer does not say."""
        cached = (done.cached_tokens if cached_tokens is None else cached_tokens) or 0
        self._metrics.own_prompt_tokens.inc(done.prompt_tokens)
        self._metrics.own_computed_tokens.inc(done.prompt_tokens - cached)
