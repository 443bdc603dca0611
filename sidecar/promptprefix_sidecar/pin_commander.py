"""Signs commands to the pin plugin and sends them with ordinary completion requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from promptprefix.pin_command import Operation, PinCommand
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineApi, Prefilled
from promptprefix_sidecar.key_file import read_key
from promptprefix_sidecar.pins import PinReason

SHORT_PROMPT = (0,)
"""One token, for commands that compute nothing."""

MAX_SHORT_TIMEOUT_S = 15.0
MIN_SHORT_TIMEOUT_S = 1.0
EXPIRY_MARGIN_S = 60
MAX_TRIES = 5


class PinCommander:
    """One per process: its counter rises over all commands, restarts of the process included.

    Every method raises `EngineError` or `KeyFileError`. An answer of None means that the engine has
    not loaded the plugin.
    """

    def __init__(
        self,
        engine: EngineApi,
        key_file: Path,
        clock: Clock,
        *,
        lease_s: int = 120,
        prefill_timeout_s: float = 600.0,
    ) -> None:
        self._engine = engine
        self._key_file = key_file
        self._clock = clock
        self.lease_s = lease_s
        # A command without an answer must not hold up the next renewal: a busy engine may answer
        # late, but it renews and unpins when a command arrives.
        self._short_timeout = min(MAX_SHORT_TIMEOUT_S, lease_s / 3)
        self._prefill_timeout = prefill_timeout_s
        self._counter = int(clock.wall() * 1000)

    async def report(self, model: str, *, first: bool = False) -> Prefilled:
        """Ask for the epoch and all pins.

        Before the ``first`` answer no pin can be renewed, so nothing is held up by waiting for it;
        one that is asked for again stands behind all who wait for a busy engine.
        """
        timeout_s = float(self.lease_s) if first else self._short_timeout
        return await self._short("report", model, epoch="", timeout_s=timeout_s)

    async def renew(
        self, model: str, epoch: str, pin_id: str, priority: int, rounds: int = 1
    ) -> Prefilled:
        """Extend the lease of a pin; one of ``rounds`` that follow each other.

        All of them together take a third of a lease at most, answered or not.
        """
        timeout_s = min(self._short_timeout, self.lease_s / 3 / rounds)
        return await self._short(
            "renew",
            model,
            epoch,
            pin_id,
            self.lease_s,
            priority,
            timeout_s=max(MIN_SHORT_TIMEOUT_S, timeout_s),
        )

    async def unpin(self, model: str, epoch: str, pin_id: str) -> Prefilled:
        """Give up a pin."""
        return await self._short("unpin", model, epoch, pin_id)

    async def evict(self, model: str, epoch: str, pin_id: str) -> Prefilled:
        """Give up a pin, or what is watched of one, and drop its blocks from the cache."""
        return await self._short("evict", model, epoch, pin_id)

    async def warm(
        self,
        model: str,
        epoch: str,
        prompt_ids: Sequence[int],
        cache_salt: str = "",
        *,
        report_cached: bool = False,
    ) -> Prefilled:
        """Compute ``prompt_ids`` once no user waits; it counts as nobody's use of a prefix."""
        return await self._send(
            PinCommand(
                op="warm", id="", epoch=epoch, counter=0, expiry=0, tokens=len(prompt_ids) - 1
            ),
            model,
            prompt_ids,
            self._prefill_timeout,
            cache_salt,
            report_cached=report_cached,
        )

    async def pin(
        self,
        model: str,
        epoch: str,
        pin_id: str,
        prompt_ids: Sequence[int],
        priority: int,
        cache_salt: str = "",
    ) -> Prefilled:
        """Compute ``prompt_ids`` and pin all but the last of them."""
        return await self._send(
            PinCommand(
                op="pin",
                id=pin_id,
                epoch=epoch,
                counter=0,
                expiry=0,
                lease=self.lease_s,
                priority=priority,
                tokens=len(prompt_ids) - 1,
            ),
            model,
            prompt_ids,
            self._prefill_timeout,
            cache_salt,
        )

    async def _short(
        self,
        operation: Operation,
        model: str,
        epoch: str,
        pin_id: str = "",
        lease_s: int = 0,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Prefilled:
        command = PinCommand(
            op=operation,
            id=pin_id,
            epoch=epoch,
            counter=0,
            expiry=0,
            lease=lease_s,
            priority=priority,
        )
        return await self._send(command, model, SHORT_PROMPT, timeout_s or self._short_timeout)

    async def _send(
        self,
        command: PinCommand,
        model: str,
        prompt_ids: Sequence[int],
        timeout_s: float,
        cache_salt: str = "",
        *,
        report_cached: bool = False,
    ) -> Prefilled:
        for attempt in range(MAX_TRIES):
            signed = replace(
                command,
                counter=self._next_counter(attempt),
                expiry=int(self._clock.wall() + timeout_s) + EXPIRY_MARGIN_S,
            ).encode(read_key(self._key_file), prompt_ids)
            done = await self._engine.prefill(
                model, prompt_ids, signed, timeout_s, cache_salt, report_cached=report_cached
            )
            if done.answer is None or done.answer.reason != PinReason.REPLAYED:
                break
        return done

    def _next_counter(self, attempt: int) -> int:
        """Return a counter above all before it.

        Where it is refused all the same, the wall clock went back while this process was restarted:
        then only leaps help. Or the plugin is an older one, and the command was overtaken on its
        way by a later one: then the next try does.
        """
        self._counter += 1 + (1000 * 60**attempt if attempt else 0)
        return self._counter
