"""Carries out planned actions against the engine and notes what came of them on the board."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from promptprefix.payload import PayloadError
from promptprefix.reasons import Reason
from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar import lifecycle, release
from promptprefix_sidecar.actions import (
    Evict,
    KeepAction,
    Offload,
    Policy,
    Prepare,
    Renew,
    Report,
    Touch,
    Unpin,
    Warm,
    WarmAction,
)
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock, next_check
from promptprefix_sidecar.contents import Contents
from promptprefix_sidecar.control_client import ControlError, ControlStatusError
from promptprefix_sidecar.engine_api import EngineError
from promptprefix_sidecar.head import Head, HeadError
from promptprefix_sidecar.lifecycle import Failure
from promptprefix_sidecar.metrics import Metrics
from promptprefix_sidecar.offloading import Offloader
from promptprefix_sidecar.pin_desk import PinDesk
from promptprefix_sidecar.provenance import Progress, Provenance
from promptprefix_sidecar.rendering import Renderer
from promptprefix_sidecar.residency import Toucher, UnprovenError
from promptprefix_sidecar.salts import Salts
from promptprefix_sidecar.settling import change
from promptprefix_sidecar.snapshot import Record, Snapshot

log = structlog.get_logger()

NOT_FOUND = 404


class Executor:
    """One per process. `run` ends without an error; what went wrong stands on the board."""

    def __init__(
        self,
        board: Board,
        contents: Contents,
        salts: Salts,
        renderer: Renderer,
        toucher: Toucher,
        desk: PinDesk,
        offloader: Offloader,
        provenance: Provenance,
        policy: Policy,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._board = board
        self._contents = contents
        self._salts = salts
        self._renderer = renderer
        self._toucher = toucher
        self._desk = desk
        self._offloader = offloader
        self._provenance = provenance
        self._policy = policy
        self._clock = clock
        self._metrics = metrics

    async def run(self, action: KeepAction | Touch | WarmAction) -> None:
        """Carry out one action; nothing if the board has changed since and it has no object."""
        match action:
            case Report():
                await self._desk.report()
            case Renew(pins):
                await self._desk.renew(pins)
            case Unpin(pin_id):
                await self._desk.unpin(pin_id)
            case Evict(record_id, pin_id):
                await self._desk.evict(record_id, pin_id)
            case Touch(record_id):
                if record := self._prepared(record_id):
                    await self._touch(record)
            case Prepare(record_id):
                if record := self._board.snapshot.records.get(record_id):
                    await self._prepare(record)
            case Warm(record_id, hard):
                if record := self._prepared(record_id):
                    await self._warm(record, hard=hard)
            case Offload(record_id):
                if record := self._prepared(record_id):
                    await self._offload(record)

    def _prepared(self, record_id: str) -> Record | None:
        record = self._board.snapshot.records.get(record_id)
        return None if record is None or record.head is None else record

    async def _prepare(self, record: Record) -> None:
        self._change(record, lifecycle.began)
        try:
            head = await self._head(record)
        except (ControlError, EngineError) as error:
            self._prepare_failed(record, _transient(error))
        except PayloadError as error:
            self._prepare_failed(record, Failure(error.reason, error.unquoted, settled=True))
        except HeadError as error:
            self._prepare_failed(record, Failure(error.reason, error.message, settled=True))
        else:
            moment = self._clock.moment()
            recheck_at = next_check(moment, self._policy.digest_check_interval_s)
            if record.head is not None and record.head != head:
                log.info("tokens changed", **_names(record), tokens=head.tokens)
            self._change(record, lambda r: lifecycle.prepared(r, head, moment.now, recheck_at))

    async def _head(self, record: Record) -> Head:
        payload = await self._contents.get(record.placement.content_digest)
        snapshot = self._board.snapshot
        if snapshot.block_size == 0:
            raise EngineError("the engine has not told its block size yet")
        head = await self._renderer.head(record.placement.model, payload, snapshot.block_size)
        _check_engine(head, snapshot)
        return head

    def _prepare_failed(self, record: Record, failure: Failure) -> None:
        moment = self._clock.moment()
        recheck_at = next_check(moment, self._policy.digest_check_interval_s)
        log.warning(
            "prefix not prepared", **_names(record), reason=failure.reason, message=failure.message
        )
        self._change(record, lambda r: lifecycle.prepare_failed(r, failure, moment.now, recheck_at))

    async def _warm(self, record: Record, *, hard: bool) -> None:
        self._change(record, lifecycle.began)
        try:
            cache_salt = await self._salts.get(record.placement)
        except ControlError as error:
            self._not_warm(record, _transient(error))
        else:
            before = await self._provenance.reading()
            pin = self._desk.pin if hard else self._warm_softly
            progress = await pin(record, cache_salt)
            await self._explain(record, progress, before)
        after = self._board.snapshot.records.get(record.id)
        outcome = "gone" if after is None else after.phase.value.lower()
        self._metrics.warm_ups.labels(outcome=outcome).inc()

    async def _explain(
        self, record: Record, progress: Progress | None, before: Mapping[str, int] | None
    ) -> None:
        """Say where the tokens came from, if they had to be brought."""
        after = self._board.snapshot.records.get(record.id)
        warm = after is not None and after.phase is Phase.WARM
        if progress is None or record.phase is Phase.WARM or not warm:
            return
        origin = self._provenance.note(progress, before, await self._provenance.reading())
        self._change(record, lambda r: lifecycle.explained(r, origin.words))
        log.info(
            "prefix warm", **_names(record), computed=origin.computed, found=dict(origin.cached)
        )

    async def _warm_softly(self, record: Record, cache_salt: str) -> Progress | None:
        head = record.head
        assert head is not None  # noqa: S101 - the plan warms prepared records only
        started = self._clock.monotonic()
        try:
            progress = await self._toucher.prove(record.placement.model, head, cache_salt)
        except (EngineError, UnprovenError) as error:
            self._not_warm(record, Failure(Reason.WARM_FAILED, str(error)))
            return None
        now = self._clock.monotonic()

        def warmed(current: Record) -> Record:
            if current.head != head:
                return current
            none = current.placement.pinning is Pinning.NONE
            pinned = Pinning.NONE if none else Pinning.SOFT
            touch_at = now + self._policy.touch_interval_s
            return lifecycle.warmed(current, pinned, now - started, touch_at)

        self._change(record, warmed)
        return progress

    def _not_warm(self, record: Record, failure: Failure) -> None:
        now = self._clock.monotonic()
        log.warning("prefix not warm", **_names(record), message=failure.message)
        self._change(record, lambda r: lifecycle.not_had(r, failure, now))

    async def _touch(self, record: Record) -> None:
        assert record.head is not None  # noqa: S101 - only a warm record is touched
        cached: int | None = None
        try:
            cache_salt = await self._salts.get(record.placement)
            cached = await self._toucher.touch(
                record.placement.model, record.head, cache_salt, report_cached=record.unproved
            )
        except (ControlError, EngineError) as error:
            log.warning("touch failed", **_names(record), message=str(error))
        now = self._clock.monotonic()
        touch_at = now + self._policy.touch_interval_s
        self._change(record, lambda r: lifecycle.touched(r, cached, now, touch_at))

    async def _offload(self, record: Record) -> None:
        try:
            cache_salt = await self._salts.get(record.placement)
        except ControlError as error:
            message, now = str(error), self._clock.monotonic()
            self._change(record, lambda r: release.delayed(r, message, now))
        else:
            await self._offloader.offload(record, cache_salt)

    def _change(self, record: Record, edit: Callable[[Record], Record]) -> None:
        self._board.apply(lambda snapshot: change(snapshot, record.id, edit))


def _transient(error: ControlError | EngineError) -> Failure:
    if isinstance(error, ControlStatusError) and error.status == NOT_FOUND:
        return Failure(Reason.CONTENT_NOT_FOUND, str(error))
    passing = isinstance(error, ControlError) and error.passing
    return Failure(Reason.WARM_FAILED, str(error), passing=passing)


def _check_engine(head: Head, snapshot: Snapshot) -> None:
    """Raise `HeadError` where the engine can't hold the head at all."""
    if not snapshot.engine.prefix_caching:
        raise HeadError(
            Reason.WARM_FAILED,
            "the engine runs without prefix caching: start it with --enable-prefix-caching",
        )
    longest = snapshot.engine.max_model_len
    if longest and head.tokens + 2 > longest:
        raise HeadError(
            Reason.WARM_FAILED,
            f"the prefix has {head.tokens} tokens, the engine takes {longest} with the user's turn "
            "and the answer: shorten it or raise --max-model-len",
        )
    blocks = snapshot.engine.blocks_total
    needed = head.tokens // snapshot.block_size
    if blocks and needed >= blocks:
        raise HeadError(
            Reason.WARM_FAILED,
            f"the prefix needs {needed} KV blocks, the engine has {blocks}: shorten it or give the "
            "engine more memory",
        )


def _names(record: Record) -> dict[str, str]:
    return {"namespace": record.placement.namespace, "name": record.placement.name}
