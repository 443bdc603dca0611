"""Takes commands in, carries them out on the pin table at the right moment, and words the answers.

It is told of a request twice: when it is added and when it is freed. Unpin and renew act at once,
because an engine starved by pins may never finish a request. Pin and report act at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from promptprefix_vllm.commands import Command, CommandError, CommandVerifier, parse
from promptprefix_vllm.pins import Pin, PinTable

MAX_PENDING: Final = 4096

Answer = dict[str, Any]


class PinDesk:
    """One per engine. Every method is total: a bad command never raises into the engine's loop."""

    def __init__(
        self,
        table: PinTable,
        key: bytes,
        epoch: str,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.epoch = epoch
        self._verifier = CommandVerifier(key, epoch)
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._pending: dict[str, Command] = {}
        self._answers: dict[str, Answer] = {}
        self._refusals: dict[str, Answer] = {}

    def knows(self, request_id: str) -> bool:
        known = (self._pending, self._answers, self._refusals)
        return any(request_id in requests for requests in known)

    def is_warm_up(self, request_id: str) -> bool:
        command = self._pending.get(request_id)
        return command is not None and command.op == "pin"

    def receive(
        self, request_id: str, text: object, token_ids: Sequence[int], hashes: Sequence[bytes]
    ) -> None:
        """``hashes``: the chained hashes of the prompt's full blocks."""
        try:
            command = parse(text)
            self._verifier.verify(command, token_ids, self._wall_clock())
        except CommandError as refused:
            # Anybody can send these; they must not take the place of genuine ones.
            if len(self._refusals) < MAX_PENDING:
                self._refusals[request_id] = refusal(refused)
            return
        if len(self._pending) + len(self._answers) >= MAX_PENDING:
            return
        now = self._monotonic()
        self.table.release_expired(now)
        try:
            self._begin(request_id, command, len(token_ids), hashes, now)
        except CommandError as refused:
            self._answers[request_id] = self._answer(now, refused=refused)

    def finish(self, request_id: str, hashes: Sequence[bytes], completed: bool) -> Answer | None:
        """``completed``: the request ran to its end; one that was aborted pins nothing."""
        answer = self._answers.pop(request_id, None) or self._refusals.pop(request_id, None)
        command = self._pending.pop(request_id, None)
        if command is None or not completed:
            return answer
        now = self._monotonic()
        self.table.release_expired(now)
        if command.op == "report":
            return self._answer(now, pins=self.table.pins)
        try:
            pin = self.table.pin(
                command.id,
                hashes[: command.tokens // self.table.block_size],
                lease=command.lease,
                priority=command.priority,
                now=now,
            )
        except CommandError as refused:
            return self._answer(now, refused=refused)
        return self._answer(now, pins=(pin,))

    def _begin(
        self,
        request_id: str,
        command: Command,
        prompt_tokens: int,
        hashes: Sequence[bytes],
        now: float,
    ) -> None:
        if command.op == "unpin":
            pin = self.table.unpin(command.id, now=now)
            self._answers[request_id] = self._answer(now, pins=(pin,), released="Unpinned")
        elif command.op == "renew":
            pin = self.table.renew(
                command.id, lease=command.lease, priority=command.priority, now=now
            )
            self._answers[request_id] = self._answer(now, pins=(pin,))
        else:
            if command.op == "pin":
                self._check_pin(command, prompt_tokens, hashes)
            self._pending[request_id] = command

    def _check_pin(self, command: Command, prompt_tokens: int, hashes: Sequence[bytes]) -> None:
        size = self.table.block_size
        if command.tokens % size or prompt_tokens <= command.tokens:
            # Without one more token, the last block would be computed anew at every pin.
            raise CommandError(
                "Malformed",
                f"pin a multiple of {size} tokens, with at least one more token in the prompt",
            )
        self.table.check_budget(command.id, hashes[: command.tokens // size])

    def _answer(
        self,
        now: float,
        *,
        pins: Sequence[Pin] = (),
        released: str = "",
        refused: CommandError | None = None,
    ) -> Answer:
        table = self.table
        return {
            "v": 1,
            "ok": refused is None,
            "reason": "" if refused is None else refused.reason,
            "message": "" if refused is None else refused.message,
            "epoch": self.epoch,
            "pin_epoch": table.pin_epoch,
            "block_size": table.block_size,
            "blocks_total": table.pool.num_gpu_blocks - 1,
            "blocks_free": table.pool.get_num_free_blocks(),
            "blocks_pinned": table.blocks_pinned,
            "budget_blocks": table.budget_blocks,
            "pins": [self._describe(pin, released, now) for pin in pins],
            "released": [
                {
                    "id": release.id,
                    "reason": release.reason,
                    "tokens": release.blocks * table.block_size,
                    "age_s": _seconds(now - release.at),
                }
                for release in table.releases
            ],
        }

    def _describe(self, pin: Pin, released: str, now: float) -> dict[str, Any]:
        table = self.table
        return {
            "id": pin.id,
            "tokens": len(pin.hashes) * table.block_size,
            "resident_tokens": table.resident_tokens(pin),
            "pinned_tokens": 0 if released else table.pinned_tokens(pin),
            "lease_left_s": 0.0 if released else _seconds(pin.deadline - now),
            "priority": pin.priority,
            "hits": pin.hits,
            "last_hit_age_s": None if pin.last_hit is None else _seconds(now - pin.last_hit),
            "state": "released" if released else "pinned",
            "released_reason": released,
        }


def refusal(refused: CommandError) -> Answer:
    """The answer to a command that was not proven genuine: it tells nothing about the engine."""
    return {"v": 1, "ok": False, "reason": refused.reason, "message": refused.message}


def _seconds(duration: float) -> float:
    return round(max(0.0, duration), 3)
