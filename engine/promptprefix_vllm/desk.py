"""Takes commands in, carries them out on the pin table at the right moment, and words the answers.

It is told of a request twice: when it is added and when it is freed. Unpin and renew act at once,
because an engine starved by pins may never finish a request. Evict acts at once as well: what is
dropped must not be found by the next request. Pin, warm and report act at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from promptprefix_vllm.adapters import Adapter, AdapterRoster
from promptprefix_vllm.commands import COMPUTING, Command, CommandError, CommandVerifier, parse
from promptprefix_vllm.connectors import Transfer
from promptprefix_vllm.inspection import Found, Inspector
from promptprefix_vllm.pins import ADAPTER_CHANGED, EVICTED, UNPINNED, Pin, PinTable
from promptprefix_vllm.watchlist import Watched

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
        transfer: Transfer | None = None,
    ) -> None:
        self.table = table
        self._inspector = Inspector(table)
        self.adapters = AdapterRoster()
        self._transfer = transfer or Transfer()
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
        return command is not None and command.op in COMPUTING

    def is_accepted(self, request_id: str) -> bool:
        """Genuine, and not refused so far."""
        answer = self._answers.get(request_id)
        return request_id in self._pending or (answer is not None and bool(answer["ok"]))

    def give_up(self, request_id: str) -> None:
        """There are no blocks for its prompt: a command that was to act at the end is answered."""
        command = self._pending.pop(request_id, None)
        if command is None:
            return
        now = self._monotonic()
        if command.op == "report":
            self._answers[request_id] = self._report(now)
            return
        table = self.table
        left = f"{table.cache.blocks_free} blocks are free, {table.blocks_pinned} pinned"
        refused = CommandError("BudgetExceeded", f"there is no room to compute the prompt: {left}")
        self._answers[request_id] = self._answer(now, refused=refused)

    def see_adapter(self, adapter: Adapter | None) -> tuple[Pin, ...]:
        """Of every request that comes in; returns the pins that another adapter made stale."""
        if adapter is None or not self.adapters.see(adapter):
            return ()
        return self.table.release_outdated(adapter, self._monotonic())

    def receive(
        self,
        request_id: str,
        text: object,
        token_ids: Sequence[int],
        hashes: Sequence[bytes],
        adapter: Adapter | None = None,
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
            if command.op == "pin":
                self._check_pin(command, len(token_ids), hashes, adapter)
            elif command.op == "warm":
                self._check_prompt(command, len(token_ids))
                self.table.check_room(hashes)
            self._begin(request_id, command, now)
        except CommandError as refused:
            self._answers[request_id] = self._answer(now, refused=refused)

    def finish(
        self,
        request_id: str,
        hashes: Sequence[bytes],
        completed: bool,
        adapter: Adapter | None = None,
    ) -> Answer | None:
        """``completed``: the request ran to its end; one that was aborted pins nothing."""
        answer = self._answers.pop(request_id, None) or self._refusals.pop(request_id, None)
        command = self._pending.pop(request_id, None)
        if command is None or not completed:
            return answer
        now = self._monotonic()
        self.table.release_expired(now)
        if command.op == "report":
            return self._report(now)
        if command.op == "warm":
            return self._answer(now)
        try:
            if self.adapters.is_outdated(adapter):
                raise CommandError(ADAPTER_CHANGED, "the adapter was replaced while this ran")
            pin = self.table.pin(
                command.id,
                hashes[: command.tokens // self.table.block_size],
                lease=command.lease,
                priority=command.priority,
                now=now,
                adapter=adapter,
            )
        except CommandError as refused:
            return self._answer(now, refused=refused)
        return self._answer(now, pins=(pin,))

    def _begin(self, request_id: str, command: Command, now: float) -> None:
        if command.op == "unpin":
            pin = self.table.unpin(command.id, now=now)
            self._answers[request_id] = self._answer(now, pins=(pin,), released=UNPINNED)
        elif command.op == "evict":
            entry = self.table.evict(command.id, now=now)
            self._answers[request_id] = self._answer(now, pins=(entry,), released=EVICTED)
        elif command.op == "renew":
            pin = self.table.renew(
                command.id, lease=command.lease, priority=command.priority, now=now
            )
            self._answers[request_id] = self._answer(now, pins=(pin,))
        else:
            self._pending[request_id] = command

    def _check_pin(
        self,
        command: Command,
        prompt_tokens: int,
        hashes: Sequence[bytes],
        adapter: Adapter | None,
    ) -> None:
        size = self.table.block_size
        if command.tokens % size:
            raise CommandError("Malformed", f"pin a multiple of {size} tokens")
        self._check_prompt(command, prompt_tokens)
        if adapter is not None and adapter.in_place:
            raise CommandError(
                "AdapterInPlace",
                "the adapter is loaded in place, so its weights can change unnoticed: "
                "unload it and load it anew",
            )
        self.table.check_budget(command.id, hashes[: command.tokens // size])

    def _check_prompt(self, command: Command, prompt_tokens: int) -> None:
        if prompt_tokens <= command.tokens:
            # Without one more token, the last block would be computed anew every time.
            raise CommandError("Malformed", "the prompt needs at least one more token")

    def _report(self, now: float) -> Answer:
        table = self.table
        watched = [
            {
                "id": entry.id,
                "tokens": len(entry.hashes) * table.block_size,
                "resident_tokens": table.cache.covered(entry.hashes) * table.block_size,
                "matches": entry.matches,
                "last_match_age_s": _age(now, entry.last_match),
            }
            for entry in table.watchlist.entries
        ]
        found = self._inspector.look()
        return {**self._answer(now, pins=table.pins, found=found), "watched": watched}

    def _answer(
        self,
        now: float,
        *,
        pins: Sequence[Watched] = (),
        released: str = "",
        refused: CommandError | None = None,
        found: Mapping[str, Found] | None = None,
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
            "blocks_total": table.cache.blocks_total,
            "blocks_free": table.cache.blocks_free,
            "blocks_pinned": table.blocks_pinned,
            "budget_blocks": table.budget_blocks,
            "offload_tier": self._transfer.offload_tier,
            "kv_role": self._transfer.kv_role,
            "pins": [self._describe(pin, released, now, found or {}) for pin in pins],
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

    def _describe(
        self, entry: Watched, released: str, now: float, found: Mapping[str, Found]
    ) -> dict[str, Any]:
        table = self.table
        pin = entry if isinstance(entry, Pin) else None
        held = pin if pin is not None and not released else None
        if held is not None:
            there = found.get(held.id) or self._inspector.found(held)
        else:
            there = Found(table.resident_tokens(entry), 0)
        return {
            "id": entry.id,
            "tokens": len(entry.hashes) * table.block_size,
            "resident_tokens": there.resident,
            "pinned_tokens": there.pinned,
            "lease_left_s": _seconds(held.deadline - now) if held is not None else 0.0,
            "priority": pin.priority if pin is not None else 0,
            "hits": pin.hits if pin is not None else 0,
            "last_hit_age_s": _age(now, pin.last_hit if pin is not None else None),
            "matches": entry.matches,
            "last_match_age_s": _age(now, entry.last_match),
            "state": "pinned" if held is not None else "released",
            "released_reason": released,
        }


def refusal(refused: CommandError) -> Answer:
    """The answer to a command that was not proven genuine: it tells nothing about the engine."""
    return {"v": 1, "ok": False, "reason": refused.reason, "message": refused.message}


def _seconds(duration: float) -> float:
    return round(max(0.0, duration), 3)


def _age(now: float, since: float | None) -> float | None:
    return None if since is None else _seconds(now - since)
