"""Keeps the readiness of the pod up to date with the board."""

from __future__ import annotations

import structlog

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.readiness import Readiness, ReadinessLimits, not_ready_because

log = structlog.get_logger()


class Gate:
    """Holds the latch."""

    def __init__(self, board: Board, limits: ReadinessLimits, clock: Clock) -> None:
        self._board = board
        self._limits = limits
        self._clock = clock
        self._readiness = Readiness()
        self._changed = board.subscribe()

    async def run(self) -> None:
        """Follow the board, so that no change between two probes is missed."""
        while True:
            self.why_closed()
            await self._changed.wait()

    def answered(self, boot: str) -> None:
        """Take note that the operator answered a state with a healthy engine of this boot."""
        self.why_closed()
        self._readiness = self._readiness.answered(boot, self._clock.monotonic())

    def why_closed(self) -> str:
        """Look at the board; return why the pod is not ready, or an empty text if it is."""
        snapshot = self._board.snapshot
        before = self._readiness
        self._readiness = before.seen(snapshot, self._clock.monotonic(), self._limits)
        if self._readiness.latched and not before.latched:
            if self._readiness.failed_open:
                log.warning("ready without all prefixes: the time to wait for them is over")
            else:
                log.info("ready")
        return not_ready_because(self._readiness, snapshot)
