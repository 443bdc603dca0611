"""Watches the engine from outside: health, identity, models and load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.engine_api import (
    EngineApi,
    EngineError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from promptprefix_sidecar.engine_change import with_engine
from promptprefix_sidecar.snapshot import OUTAGE_BOOT, EngineView

log = structlog.get_logger()

TOLERATED_TIMEOUTS = 2
"""A busy engine may answer late; one that refuses connections is down at once."""


class Watcher:
    """Looks at the engine and puts what it sees on the board."""

    def __init__(self, engine: EngineApi, board: Board, restarted: Callable[[], None]) -> None:
        self._engine = engine
        self._board = board
        self._restarted = restarted
        self._timeouts = 0
        self._outages = 0
        self._gone = True
        self._problem = ""

    async def run(self, interval_s: float) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Look once."""
        before = self._board.snapshot.engine
        view = await self._view(before)
        if before.boot and view.boot != before.boot:
            log.warning("engine restarted")
            self._restarted()
        if view.asleep != before.asleep:
            log.info("engine fell asleep" if view.asleep else "engine woke up")
        if view.healthy != before.healthy:
            log.info("engine health changed", healthy=view.healthy)
        self._board.apply(lambda snapshot: with_engine(snapshot, view))

    async def _view(self, before: EngineView) -> EngineView:
        try:
            view = await self._observed(before)
        except EngineTimeoutError:
            self._timeouts += 1
            if self._timeouts <= TOLERATED_TIMEOUTS:
                return before
            return replace(before, healthy=False)
        except EngineUnreachableError as error:
            # An engine that dies may answer with errors before it refuses connections.
            self._outages += not self._gone
            self._gone = True
            self._note(str(error))
            return replace(before, healthy=False)
        except EngineError as error:
            self._note(str(error))
            return replace(before, healthy=False)
        self._timeouts = 0
        self._gone = False
        self._problem = ""
        return view

    def _note(self, problem: str) -> None:
        """Log a problem once, however long it lasts."""
        if problem != self._problem:
            log.warning("engine not healthy", error=problem)
        self._problem = problem

    async def _observed(self, before: EngineView) -> EngineView:
        await self._engine.check_health()
        own = self._engine.in_flight
        metrics = await self._engine.metrics()
        models = await self._engine.models()
        if not models:
            raise EngineError("the engine serves no model")
        # With several API processes the start time is not published; then only an outage tells.
        boot = metrics.start_time or f"{OUTAGE_BOOT}{self._outages}"
        version = before.version
        if boot != before.boot or not version:
            version = await self._engine.version()
        return EngineView(
            healthy=True,
            boot=boot,
            version=version,
            models=tuple(model.id for model in models),
            roots=tuple((model.id, model.root) for model in models if model.root),
            adapters=tuple(model.id for model in models if model.parent),
            max_model_len=next((m.max_model_len for m in models if m.max_model_len), 0),
            block_size=metrics.block_size,
            blocks_total=metrics.blocks_total,
            cache_usage=metrics.cache_usage,
            prefix_caching=metrics.prefix_caching,
            running=max(0, metrics.running - own),
            waiting=max(0, metrics.waiting - max(0, own - metrics.running)),
            asleep=metrics.asleep,
        )
