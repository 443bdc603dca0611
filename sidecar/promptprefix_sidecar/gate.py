"""Keeps the readiness of the pod up to date with the board."""

from __future__ import annotations

from dataclasses import replace

import structlog

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.latch_file import LatchFile
from promptprefix_sidecar.readiness import ReadinessLimits, not_ready_because
from promptprefix_sidecar.snapshot import FOREVER, OUTAGE_BOOT, GateView

log = structlog.get_logger()


class Gate:
    """Holds the latch, and shows on the board whether it is open."""

    def __init__(
        self, board: Board, limits: ReadinessLimits, clock: Clock, latch_file: LatchFile
    ) -> None:
        self._board = board
        self._limits = limits
        self._clock = clock
        self._latch_file = latch_file
        self._readiness = latch_file.read()
        self._changed = board.subscribe()

    async def run(self) -> None:
        """Follow board and clock, so that no change between two probes is missed."""
        while True:
            self.why_closed()
            now = self._clock.monotonic()
            at = self._readiness.next_look(now, self._limits)
            await self._changed.wait(None if at == FOREVER else at - now)

    def answered(self, boot: str) -> None:
        """Take note that the operator answered a state with a healthy engine of this boot."""
        self.why_closed()
        self._readiness = self._readiness.answered(boot, self._clock.monotonic())
        self._changed.notify()

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
        if not snapshot.boot.startswith(OUTAGE_BOOT):
            self._latch_file.write(self._readiness)
        why = not_ready_because(self._readiness, snapshot)
        same_boot = self._readiness.boot == snapshot.boot
        view = GateView(open=not why, failed_open=self._readiness.failed_open and same_boot)
        self._board.apply(lambda current: replace(current, gate=view))
        return why
