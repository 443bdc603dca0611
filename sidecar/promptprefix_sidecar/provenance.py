"""Where a warm-up's tokens came from: computed, or found in one of the engine's caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptprefix_sidecar.engine_api import EngineApi, EngineError, Prefilled
from promptprefix_sidecar.exposition import DEVICE
from promptprefix_sidecar.metrics import Metrics

UNATTRIBUTED = "unattributed"
"""Source of what was found while users' requests found something too."""


@dataclass(frozen=True)
class Progress:
    """Own requests of one warm-up so far: they reach to ``end``, and ``found`` of that was there.

    What one chunk computed is no find of the next, but the engine counts it as ``cached``.
    """

    end: int = 0
    found: int = 0
    cached: int = 0

    def plus(self, end: int, done: Prefilled) -> Progress:
        """Return the progress after a request about the first ``end`` tokens."""
        cached = done.cached_tokens or 0
        new = max(0, min(cached, end) - self.end)
        return Progress(max(end, self.end), self.found + new, self.cached + cached)


@dataclass(frozen=True)
class Origin:
    """Tokens by where they came from; ``cached`` by the engine's names of its caches."""

    computed: int
    cached: Mapping[str, int]

    @property
    def words(self) -> str:
        """Say what was not computed, for people; empty if all was."""
        if not self.cached:
            return ""
        found = ", ".join(f"{count} from {source}" for source, count in self.cached.items())
        return f"tokens of the last warm-up: {found}, {self.computed} computed"


def origin(progress: Progress, before: Mapping[str, int], after: Mapping[str, int]) -> Origin:
    """Return where the tokens came from, by what the engine counted by source meanwhile.

    Its counters include users' requests. Where those had hits at the same time, a source is told
    only if all hits had the same.
    """
    computed = progress.end - progress.found
    if not progress.found:
        return Origin(computed, {})
    moved = {source: count - before.get(source, 0) for source, count in after.items()}
    moved = {source: count for source, count in moved.items() if count > 0}
    if len(moved) == 1:
        return Origin(computed, {next(iter(moved)): progress.found})
    tiers = {source: count for source, count in moved.items() if source != DEVICE}
    device = progress.found - sum(tiers.values())
    if not moved or sum(moved.values()) != progress.cached or device < 0:
        return Origin(computed, {UNATTRIBUTED: progress.found})
    return Origin(computed, {**({DEVICE: device} if device else {}), **tiers})


class Provenance:
    """Reads the engine's counters around a warm-up and counts what they say of it."""

    def __init__(self, engine: EngineApi, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def reading(self) -> Mapping[str, int] | None:
        """Return cached tokens by source; None if the engine does not tell."""
        try:
            return (await self._engine.metrics()).cached_by_source or None
        except EngineError:
            return None

    def note(
        self, progress: Progress, before: Mapping[str, int] | None, after: Mapping[str, int] | None
    ) -> Origin:
        """Count where the tokens of a finished warm-up came from, and return it."""
        found = origin(progress, before or {}, after or {})
        self._metrics.warm_up_tokens.labels(source="computed").inc(found.computed)
        for source, count in found.cached.items():
            self._metrics.warm_up_tokens.labels(source=source).inc(count)
        return found
