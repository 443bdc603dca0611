"""Metrics of the feed of block names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from promptprefix_sidecar.block_feed.names import BlockNames

PREFIX = "promptprefix_sidecar_block_feed"
REFUSALS = ("proof", "step", "room")


class FeedCounters:
    """Counts of one feed. Label values are words of this package."""

    def __init__(self, registry: CollectorRegistry, names: BlockNames) -> None:
        self.consumers = Gauge(
            f"{PREFIX}_consumers", "Routers that read the feed.", registry=registry
        )
        self.refused = Counter(
            f"{PREFIX}_refused",
            "Readers refused, by reason: proof (who can't prove that it may), step, room.",
            ("reason",),
            registry=registry,
        )
        self.cut_off = Counter(
            f"{PREFIX}_cut_off", "Readers cut off as they were too slow.", registry=registry
        )
        blocks = Gauge(f"{PREFIX}_blocks", "Blocks that have a name.", registry=registry)
        blocks.set_function(lambda: float(names.blocks))
        waiting = Gauge(
            f"{PREFIX}_waiting_blocks", "Blocks whose parent isn't known.", registry=registry
        )
        waiting.set_function(lambda: float(names.waiting))
        complete = Gauge(
            f"{PREFIX}_complete",
            "Whether all that the engine's cache holds is told.",
            registry=registry,
        )
        complete.set_function(lambda: float(names.complete))
        passed_over = Gauge(
            f"{PREFIX}_passed_over_blocks",
            "Blocks passed over as too many are remembered.",
            registry=registry,
        )
        passed_over.set_function(lambda: float(names.passed_over))
        for reason in REFUSALS:
            self.refused.labels(reason=reason)
