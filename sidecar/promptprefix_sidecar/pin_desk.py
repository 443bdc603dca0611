"""Deals with the pin plugin: sends its commands and notes the answers on the board."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from promptprefix.reasons import Reason
from promptprefix.resource import Pinning
from promptprefix_sidecar import lifecycle, plugin_status, release
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineError, Prefilled
from promptprefix_sidecar.evidence import with_answer, with_report
from promptprefix_sidecar.key_file import KeyFileError
from promptprefix_sidecar.lifecycle import Failure
from promptprefix_sidecar.own_traffic import OwnTraffic
from promptprefix_sidecar.pin_commander import PinCommander
from promptprefix_sidecar.pins import NO_COMMANDS, PinAnswer, PinReason, whole_report
from promptprefix_sidecar.prefilling import Prefiller
from promptprefix_sidecar.provenance import Progress
from promptprefix_sidecar.settling import change
from promptprefix_sidecar.snapshot import FOREVER, PluginStatus, Record

log = structlog.get_logger()

NOT_LOADED = (
    "the engine has not loaded the pin plugin: start it with "
    "--scheduler-cls promptprefix_vllm.scheduler.scheduler_class"
)
NOT_ABOUT_IT = (*NO_COMMANDS, PinReason.WRONG_EPOCH)
"""Refusals that say nothing of the pin that a command is about."""

CONCURRENT_RENEWALS = 8


class PinDesk:
    """Every method ends without an error; what went wrong stands on the board."""

    def __init__(
        self,
        board: Board,
        commander: PinCommander,
        prefiller: Prefiller,
        traffic: OwnTraffic,
        clock: Clock,
        pin_failed: Callable[[str], None],
    ) -> None:
        self._board = board
        self._commander = commander
        self._prefiller = prefiller
        self._traffic = traffic
        self._clock = clock
        self._pin_failed = pin_failed

    async def report(self) -> None:
        """Learn the epoch and all pins, and whether the plugin is there at all."""
        asked_at = self._clock.monotonic()
        first = self._board.snapshot.plugin.status is not PluginStatus.WORKING
        failed = partial(self._unreported, asked_at)
        answer = await self._ask(lambda: self._commander.report(self._model, first=first), failed)
        if answer is None or not answer.ok:
            if answer is not None and not answer.epoch and answer.reason not in NO_COMMANDS:
                failed(f"{answer.reason}: {answer.message}")
            return
        moment = self._clock.moment()
        report = whole_report(answer, asked_at, moment.now)
        self._board.apply(lambda snapshot: with_report(snapshot, report, moment))

    async def renew(self, pins: tuple[tuple[str, int], ...]) -> None:
        """Renew leases, all at once: under load each answer waits for its turn in the engine.

        A lease is renewed when the command arrives, so no answer is waited for at the cost of those
        that come after it.
        """
        slots = asyncio.Semaphore(CONCURRENT_RENEWALS)
        rounds = -(-len(pins) // CONCURRENT_RENEWALS)

        async def renew_one(pin_id: str, priority: int) -> None:
            async with slots:
                answer = await self._ask(
                    lambda: self._commander.renew(
                        self._model, self._epoch, pin_id, priority, rounds
                    )
                )
                if answer is None:
                    self._unanswered(pin_id)
                else:
                    self._merge(pin_id, answer)

        async with asyncio.TaskGroup() as group:
            for pin_id, priority in pins:
                group.create_task(renew_one(pin_id, priority))

    async def unpin(self, pin_id: str) -> None:
        """Give a pin up; the plugin not knowing it is as good."""
        answer = await self._ask(lambda: self._commander.unpin(self._model, self._epoch, pin_id))
        self._merge(pin_id, answer)

    async def evict(self, record_id: str, pin_id: str) -> bool:
        """Give a pin up and drop its blocks; note on the record that it was done, or why not.

        Return whether it was done.
        """
        answer = await self._ask(lambda: self._commander.evict(self._model, self._epoch, pin_id))
        if answer is None or (not answer.ok and answer.reason in NOT_ABOUT_IT):
            return False
        done = answer.ok or answer.reason == PinReason.UNKNOWN_PIN
        message = answer.message
        if done:
            self._edit(record_id, lambda record: release.evicted(record, pin_id))
        else:
            self._edit(record_id, lambda record: release.not_evictable(record, message))
            self._silent()
        self._merge(pin_id, answer)
        return done

    async def pin(self, record: Record, cache_salt: str) -> Progress | None:
        """Prefill and pin a prepared record, and note whether that made it warm.

        Return what the prefills found, None if there was no answer.
        """
        head = record.head
        assert head is not None  # noqa: S101 - the plan warms prepared records only
        model = record.placement.model
        started = self._clock.monotonic()
        self._attempt(record.id, FOREVER)
        try:
            progress = await self._prefiller.approach(model, head, cache_salt)
            done = await self._commander.pin(
                model,
                self._epoch,
                record.pin_id,
                head.prompt_ids,
                record.placement.priority,
                cache_salt,
            )
        except KeyFileError as error:
            self._refusing(PinReason.NO_KEY, str(error))
            return None
        except EngineError as error:
            self._not_pinned(record, Failure(Reason.WARM_FAILED, str(error)))
            return None
        finally:
            self._attempt(record.id, self._clock.monotonic())
        self._traffic.count(done)
        answer = self._judge(done)
        self._merge(record.pin_id, answer)
        if answer is not None:
            self._note_pin(record, answer, self._clock.monotonic() - started)
        return progress.plus(head.tokens, done)

    def _note_pin(self, record: Record, answer: PinAnswer, seconds: float) -> None:
        now = self._clock.monotonic()
        assert record.head is not None  # noqa: S101 - checked by the caller
        if answer.ok and lifecycle.complete(answer.pin(record.pin_id), record.head):
            head = record.head

            def warmed(current: Record) -> Record:
                if current.head != head:
                    return current
                return lifecycle.warmed(current, Pinning.HARD, seconds, FOREVER)

            self._edit(record.id, warmed)
            log.info(
                "prefix pinned",
                namespace=record.placement.namespace,
                name=record.placement.name,
                tokens=head.tokens,
                seconds=round(seconds, 3),
            )
            return
        if answer.ok:
            view = answer.pin(record.pin_id)
            held = 0 if view is None else min(view.resident_tokens, view.pinned_tokens)
            message = f"the engine holds {held} of {record.head.tokens} tokens after pinning them"
            self._not_pinned(record, Failure(Reason.WARM_FAILED, message))
        elif answer.reason != PinReason.WRONG_EPOCH and answer.reason not in NO_COMMANDS:
            failure = Failure(answer.reason, answer.message)
            self._edit(record.id, lambda r: lifecycle.pin_refused(r, failure, now))

    def _not_pinned(self, record: Record, failure: Failure) -> None:
        now = self._clock.monotonic()
        self._edit(record.id, lambda r: lifecycle.not_had(r, failure, now))

    def _attempt(self, record_id: str, at: float) -> None:
        self._edit(record_id, lambda record: replace(record, pin_attempt_at=at))

    def _edit(self, record_id: str, edit: Callable[[Record], Record]) -> None:
        self._board.apply(lambda snapshot: change(snapshot, record_id, edit))

    @property
    def _model(self) -> str:
        return self._board.snapshot.engine.models[0]

    @property
    def _epoch(self) -> str:
        report = self._board.snapshot.plugin.report
        return "" if report is None else report.epoch

    async def _ask(
        self,
        send: Callable[[], Awaitable[Prefilled]],
        failed: Callable[[str], None] | None = None,
    ) -> PinAnswer | None:
        """Return the answer to a short command, also a refusal; None if there is none.

        Where the command failed ``failed`` is told why; else all others wait for a moment.
        """
        try:
            done = await send()
        except KeyFileError as error:
            self._refusing(PinReason.NO_KEY, str(error))
            return None
        except EngineError as error:
            log.warning("pin command failed", error=str(error))
            if failed is None:
                self._silent()
            else:
                failed(str(error))
            return None
        self._traffic.count(done)
        return self._judge(done)

    def _judge(self, done: Prefilled) -> PinAnswer | None:
        """Note what an answer says of the plugin as a whole; return it."""
        answer = done.answer
        if answer is None:
            self._board.apply(lambda s: plugin_status.plugin_absent(s, NOT_LOADED))
            log.warning("no hard pins", reason=NOT_LOADED)
        elif not answer.ok:
            self._pin_failed(answer.reason)
            log.warning("pin command refused", reason=answer.reason, message=answer.message)
            if answer.reason in NO_COMMANDS:
                self._refusing(answer.reason, answer.message)
            elif answer.reason == PinReason.WRONG_EPOCH:
                self._board.apply(plugin_status.plugin_unknown)
            elif not answer.epoch:  # it tells nothing, so the same would be asked again at once
                self._silent()
        return answer

    def _silent(self) -> None:
        now = self._clock.monotonic()
        self._board.apply(lambda snapshot: plugin_status.plugin_silent(snapshot, now))

    def _unreported(self, asked_at: float, cause: str) -> None:
        now, lease_s = self._clock.monotonic(), self._commander.lease_s
        self._board.apply(lambda s: plugin_status.report_failed(s, cause, asked_at, now, lease_s))

    def _refusing(self, reason: str, message: str) -> None:
        now = self._clock.monotonic()
        text = f"the pin plugin takes no commands ({reason}): {message}"
        self._board.apply(lambda s: plugin_status.plugin_refusing(s, text, now))

    def _unanswered(self, pin_id: str) -> None:
        now = self._clock.monotonic()
        self._board.apply(lambda s: plugin_status.renewal_unanswered(s, pin_id, now))

    def _merge(self, pin_id: str, answer: PinAnswer | None) -> None:
        if answer is None or not answer.epoch:
            return
        moment = self._clock.moment()
        self._board.apply(
            lambda s: with_answer(
                s, pin_id, lambda report: report.merged(pin_id, answer, moment.now), moment
            )
        )
