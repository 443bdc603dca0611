"""Which heads are watched: those whose salts are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from promptprefix.tokens import TOKEN_BYTES
from promptprefix.wire import Placement
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError
from promptprefix_sidecar.kv_events.events import Batch, Stored
from promptprefix_sidecar.kv_events.follower import Follower
from promptprefix_sidecar.kv_events.index import Index
from promptprefix_sidecar.snapshot import Record

from .records import prepared, snapshot


@dataclass
class Salts:
    refused: set[str]
    asked: list[str] = field(default_factory=list)

    async def get(self, placement: Placement) -> str:
        self.asked.append(placement.id)
        if placement.id in self.refused:
            raise ControlError("status", "403")
        return "salt"


@dataclass
class Time:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


def salted(name: str) -> Record:
    record = prepared(name)
    return replace(record, placement=record.placement.model_copy(update={"salted": True}))


async def test_a_refused_salt_is_asked_for_ever_more_rarely_and_others_are_not_held_up() -> None:
    salts, time = Salts({"a"}), Time()
    board = Board(snapshot(salted("a"), salted("b")))
    follower = Follower(Index(), board, salts, Clock(monotonic=time.monotonic), 30.0)
    asked_at = []
    for _ in range(1000):
        salts.asked.clear()
        await follower.watch()
        assert "b" in salts.asked
        if "a" in salts.asked:
            asked_at.append(time.now - 100.0)
        time.now += 1.0
    assert asked_at == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811]


async def test_a_salt_that_is_had_after_all_is_watched() -> None:
    salts, time = Salts({"a"}), Time()
    record = salted("a")
    assert record.head is not None
    board = Board(snapshot(record))
    follower = Follower(Index(), board, salts, Clock(monotonic=time.monotonic), 30.0)
    tokens = record.head.prompt[: record.head.tokens * TOKEN_BYTES]
    stored = Stored((b"1",), None, tokens, record.head.tokens, salt="salt")

    async def resident_after(now: float) -> int:
        time.now = now
        await follower.watch()
        follower.take(Batch(now, (stored,)))
        follower.flush()
        return board.snapshot.records["a"].resident_tokens

    assert await resident_after(100.0) == 0
    salts.refused.clear()
    assert await resident_after(100.5) == 0
    assert await resident_after(101.0) == record.head.tokens
