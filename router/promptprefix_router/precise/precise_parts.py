"""The parts of the precise mode, joined."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from promptprefix_router.choosing.chooser import Chooser, UndeclaredMode
from promptprefix_router.control.routes import Routes
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.precise.block_index import BlockIndex
from promptprefix_router.precise.feed_keeper import FeedKeeper
from promptprefix_router.precise.pod_blocks import PodBlocks
from promptprefix_router.precise.precise_metrics import PreciseMetrics
from promptprefix_router.precise.precise_mode import PreciseMode
from promptprefix_router.precise.token_reader import TokenReader
from promptprefix_router.settings import RouterSettings


@dataclass(frozen=True)
class PreciseParts:
    """What the picker asks, what the chooser looks at, and what keeps both up to date."""

    mode: PreciseMode
    blocks: PodBlocks
    feeds: FeedKeeper

    @classmethod
    def of(cls, settings: RouterSettings, metrics: RouterMetrics) -> Self:
        """Join the parts as ``settings`` say."""
        index = BlockIndex(settings.precise_max_blocks)
        blocks = PodBlocks(index, time.monotonic)
        reader = TokenReader(settings.precise_timeout_ms / 1000)
        counts = PreciseMetrics(
            metrics.registry,
            states=lambda: blocks.states,
            blocks=lambda: len(index),
            dropped=lambda: index.dropped,
            waiting=lambda: reader.waiting,
        )

        def tell(in_force: bool) -> None:
            metrics.in_force(UndeclaredMode.PRECISE if in_force else UndeclaredMode.APPROXIMATE)

        mode = PreciseMode(blocks, reader, counts, time.monotonic, tell)
        return cls(mode, blocks, FeedKeeper(blocks, counts.heard))

    def serve(self, chooser: Chooser) -> None:
        """Have ``chooser`` forget what was sent to engines that lost everything."""
        self.blocks.emptied = chooser.forget

    def want(self, routes: Routes) -> None:
        """Follow these routes from now on."""
        self.feeds.want(routes)
        self.mode.use(routes)
