"""Moves a released prefix out of GPU memory once the engine's offload tier has shown its copy."""

from __future__ import annotations

from promptprefix.resource import OnIdle
from promptprefix_sidecar import release
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineError
from promptprefix_sidecar.pin_desk import PinDesk
from promptprefix_sidecar.residency import Toucher
from promptprefix_sidecar.settling import change
from promptprefix_sidecar.snapshot import Record

ROUNDS = 2
"""A tier may take its copy only when the prefix is computed again, which the first round does."""


class Offloader:
    """Only KV events say what a tier holds. Without them it is evicted and asked for again."""

    def __init__(self, board: Board, desk: PinDesk, toucher: Toucher, clock: Clock) -> None:
        self._board = board
        self._desk = desk
        self._toucher = toucher
        self._clock = clock

    async def offload(self, record: Record, cache_salt: str) -> None:
        """Evict, see the tier give it back, and evict again; what came of it is on the board."""
        plugin = self._board.snapshot.plugin
        tier = "" if plugin.report is None else plugin.report.offload_tier
        pin_ids = (*release.evictable(record, plugin), *record.evicted)
        try:
            offloaded = await self._moved(record, pin_ids, cache_salt)
        except EngineError as error:
            message, now = str(error), self._clock.monotonic()
            self._board.apply(
                lambda s: change(s, record.id, lambda r: release.delayed(r, message, now))
            )
            return

        def edit(current: Record) -> Record:
            if not current.releasing:
                return current
            if offloaded:
                return release.done(current, OnIdle.OFFLOAD)
            return release.not_offloaded(current, tier)

        self._board.apply(lambda snapshot: change(snapshot, record.id, edit))

    async def _moved(self, record: Record, pin_ids: tuple[str, ...], cache_salt: str) -> bool:
        assert record.head is not None  # noqa: S101 - the plan offloads prepared records only
        await self._evict(record, pin_ids)
        current = self._board.snapshot.records.get(record.id, record)
        if current.copied_tokens >= record.head.tokens:  # by the engine's KV events
            return True
        for _ in range(ROUNDS):
            given = await self._toucher.from_tier(record.placement.model, record.head, cache_salt)
            if given:
                await self._evict(record, pin_ids)
                return True
            await self._evict(record, pin_ids)
        return False

    async def _evict(self, record: Record, pin_ids: tuple[str, ...]) -> None:
        for pin_id in pin_ids:
            if not await self._desk.evict(record.id, pin_id):
                raise EngineError("the pin plugin did not evict the prefix")
