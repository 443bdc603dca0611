"""Keeps the index in step with the placements, and puts what it proves on the board."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from promptprefix.tokens import TOKEN_BYTES
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.kv_events.effects import with_residencies
from promptprefix_sidecar.kv_events.events import Batch
from promptprefix_sidecar.kv_events.index import HeadKey, Index
from promptprefix_sidecar.lifecycle import backoff
from promptprefix_sidecar.snapshot import FOREVER, NEVER, Snapshot

FIRST_SALT_BACKOFF_S = 1.0
MAX_SALT_BACKOFF_S = 300.0


class KnowsSalts(Protocol):
    """Where a placement's cache salt is had from."""

    async def get(self, placement: Placement) -> str:
        """Return the salt, empty for a placement without one; raise `ControlError`."""


@dataclass(frozen=True)
class _Refusal:
    """A salt was not had so many times in a row. It is asked for again at ``retry_at``."""

    failures: int = 0
    retry_at: float = NEVER

    def again(self, now: float) -> _Refusal:
        failures = self.failures + 1
        wait = backoff(failures, FIRST_SALT_BACKOFF_S, MAX_SALT_BACKOFF_S)
        return _Refusal(failures, now + wait)


class Follower:
    """A sink of events."""

    def __init__(
        self, index: Index, board: Board, salts: KnowsSalts, clock: Clock, pace_s: float
    ) -> None:
        self._index = index
        self._board = board
        self._salts = salts
        self._clock = clock
        self._pace_s = pace_s
        self._changed = board.subscribe()
        self._keys: dict[str, HeadKey] = {}
        self._heads: dict[HeadKey, bytes] = {}
        self._refusals: dict[str, _Refusal] = {}

    def take(self, batch: Batch) -> None:
        """Take the next batch."""
        self._index.apply(batch.events)

    def missed(self) -> None:
        """Know nothing until it is proved anew."""
        self._index.forget()

    def flush(self) -> None:
        """Put on the board what changed."""
        changed = self._index.take_changed()
        if changed:
            self._publish(frozenset(id_ for id_, key in self._keys.items() if key in changed))

    async def run(self) -> None:
        """Follow the placements until cancelled."""
        while True:
            await self.watch()
            await self._changed.wait(self._salts_in_s())

    async def watch(self) -> None:
        """Watch the heads of the placements as they are now."""
        snapshot = self._board.snapshot
        adapters = frozenset(snapshot.engine.adapters)
        keys: dict[str, HeadKey] = {}
        heads: dict[HeadKey, bytes] = {}
        for record in snapshot.records.values():
            if record.head is None or not record.wanted:
                continue
            salt = await self._salt(record.placement)
            if salt is None:
                continue  # until it is known it is as without events
            model = record.placement.model
            key = HeadKey(record.head.digest, model if model in adapters else "", salt)
            keys[record.id] = key
            heads[key] = self._heads.get(key) or _tokens(record.head)
        self._keys, self._heads = keys, heads
        wanted = snapshot.records
        self._refusals = {id_: each for id_, each in self._refusals.items() if id_ in wanted}
        self._index.watch(heads)
        self.flush()
        self._publish(())

    async def _salt(self, placement: Placement) -> str | None:
        """Return the salt; None if it can't be had just now."""
        refusal = self._refusals.get(placement.id, _Refusal())
        if self._clock.monotonic() < refusal.retry_at:
            return None
        try:
            salt = await self._salts.get(placement)
        except ControlError:
            self._refusals[placement.id] = refusal.again(self._clock.monotonic())
            return None
        self._refusals.pop(placement.id, None)
        return salt

    def _salts_in_s(self) -> float | None:
        """Return the seconds until the next salt is asked for again; None if all are known."""
        at = min((each.retry_at for each in self._refusals.values()), default=FOREVER)
        return None if at == FOREVER else max(0.0, at - self._clock.monotonic())

    def _publish(self, changed: Collection[str]) -> None:
        now = self._clock.monotonic()

        def edit(snapshot: Snapshot) -> Snapshot:
            found = {
                id_: self._index.residency(self._keys[id_])
                for id_, record in snapshot.records.items()
                if id_ in self._keys and self._keys[id_].digest == record.token_digest
            }
            return with_residencies(snapshot, found, changed, now, self._pace_s)

        self._board.apply(edit)
        self._index.expect_report(self._unproved())

    def _unproved(self) -> frozenset[HeadKey]:
        """Return the heads that the next touch asks the engine to tell of."""
        records = self._board.snapshot.records
        return frozenset(
            key
            for id_, key in self._keys.items()
            if (record := records.get(id_)) and record.unproved and record.phase is Phase.WARM
        )


def _tokens(head: Head) -> bytes:
    return head.prompt[: head.tokens * TOKEN_BYTES]
