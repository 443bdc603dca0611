"""Metrics of the KV events."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "promptprefix_sidecar_kv_events"


class Counters:
    """Counts of one subscription. Label values are words of this package."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        self.connected = Gauge(
            f"{PREFIX}_connected", "Whether the engine's event socket is there.", registry=registry
        )
        self.batches = counter("batches", "Batches of events taken in, replayed ones too.")
        self.gaps = counter(
            "gaps", "Times that batches were missing, by outcome: replayed or lost.", ("outcome",)
        )
        self.replays = counter("replays", "Requests to the engine to send batches again.")
        self.resets = counter("resets", "Times that the numbers of the batches began anew.")
        self.unknown = counter(
            "unknown",
            "What could not be used: event (of a new kind), broken, batch, frames, another rank.",
            ("what",),
        )
        self._blocks = Gauge(
            f"{PREFIX}_index_blocks", "Blocks of prefixes that the index keeps.", registry=registry
        )
        for outcome in ("replayed", "lost"):
            self.gaps.labels(outcome=outcome)
        for what in ("event", "broken", "batch", "frames", "rank"):
            self.unknown.labels(what=what)

    def watch(self, blocks: Callable[[], int]) -> None:
        """Export the size of the index."""
        self._blocks.set_function(lambda: float(blocks()))
