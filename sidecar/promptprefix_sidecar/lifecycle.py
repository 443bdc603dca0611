"""How what happened to one prefix changes its record: pure functions from a record to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.pins import PinView
from promptprefix_sidecar.snapshot import FOREVER, NEVER, Record

MAX_BACKOFF_S = 60.0
PASSING_BACKOFF_S = 10.0
PIN_BACKOFF_S = 5.0
MAX_PIN_BACKOFF_S = 600.0


@dataclass(frozen=True)
class Failure:
    """Why something did not work. A ``settled`` failure stays until the text or engine changes.

    A ``passing`` one is no fault of this pod: the control API was away. Nobody is told of it, as
    the prefix would be tried on other pods, which reach that API no better.
    """

    reason: str
    message: str
    settled: bool = False
    passing: bool = False


def backoff(failures: int, first: float = 1.0, limit: float = MAX_BACKOFF_S) -> float:
    """Return the seconds to wait after this many failures in a row."""
    return float(min(limit, first * 2 ** min(failures - 1, 16)))


def fresh(record: Record) -> Record:
    """Return the record as of a prefix of which this engine holds nothing; its history stays."""
    return Record(
        record.placement,
        last_hit=record.last_hit,
        hard_evictions=record.hard_evictions,
        soft_evictions=record.soft_evictions,
    )


def outdated(record: Record) -> Record:
    """Return the record as of a prefix that is cached for weights which are no longer served."""
    if record.phase is Phase.RELEASED:
        return replace(record, head=None, found=None)
    return replace(
        fresh(record), wanted=record.wanted, stale=True, pin_attempt_at=record.pin_attempt_at
    )


def pending(record: Record) -> Record:
    """Return the record to be warmed again: nothing is known of its blocks, its tokens stay."""
    return replace(
        record,
        phase=Phase.PENDING,
        reason="",
        message="",
        pinned=Pinning.NONE,
        resident_tokens=0,
        pinned_tokens=0,
        settled=False,
        touch_at=FOREVER,
        released=None,
    )


def rewarmed(record: Record, now: float, at: float = NEVER) -> Record:
    """Return the record to be warmed again at ``at``; users go first, as before a first warm-up."""
    return replace(pending(record), waiting_since=max(now, at), retry_at=at)


def began(record: Record) -> Record:
    """A missing prefix is being worked on; a mere check changes nothing."""
    if record.phase in (Phase.WARM, Phase.RELEASED) or record.settled:
        return record
    return replace(record, phase=Phase.WARMING)


def prepared(record: Record, head: Head, now: float, recheck_at: float) -> Record:
    """The tokens are known. Other tokens than before are warmed before the old pin goes.

    One that is released stays so.
    """
    if record.phase is Phase.RELEASED:
        return replace(record, head=head, found=None, failures=0, retry_at=NEVER)
    found = record.pin_id
    before, record = record, replace(record, head=head, found=None, recheck_at=recheck_at)
    if before.phase is Phase.WARM and before.head == head:
        return record
    if before.phase is Phase.WARM and found == record.pin_id:
        # It never waited; should it be lost, it waits from now on.
        return replace(record, waiting_since=now)
    return replace(
        pending(record),
        failures=0,
        retry_at=NEVER,
        waiting_since=now,
        pin_failures=0,
        pin_reason="",
        pin_message="",
        pin_retry_at=NEVER,
    )


def prepare_failed(record: Record, failure: Failure, now: float, recheck_at: float) -> Record:
    """The tokens can't be had. A warm prefix stays warm: a failed check says nothing about it."""
    if record.phase is Phase.WARM and not failure.settled:
        return replace(record, recheck_at=recheck_at)
    if record.phase is Phase.RELEASED:
        failures = record.failures + 1
        retry_at = recheck_at if failure.settled else now + backoff(failures)
        return replace(record, failures=failures, retry_at=retry_at)
    return replace(failed(record, failure, now), head=None, recheck_at=recheck_at)


def failed(record: Record, failure: Failure, now: float) -> Record:
    """It is not warm, and is tried again later unless the failure is settled."""
    failures = record.failures + 1
    if failure.passing:
        retry_at = now + backoff(failures, limit=PASSING_BACKOFF_S)
        return replace(pending(record), failures=failures, retry_at=retry_at)
    return replace(
        pending(record),
        phase=Phase.FAILED,
        reason=failure.reason,
        message=failure.message,
        settled=failure.settled,
        failures=failures,
        retry_at=now + backoff(failures),
    )


def warmed(record: Record, pinned: Pinning, seconds: float, touch_at: float) -> Record:
    """It is resident by the engine's own evidence. ``touch_at`` matters to a soft pin only."""
    hard = pinned is Pinning.HARD
    again = record.phase is Phase.WARM
    record = replace(
        record,
        phase=Phase.WARM,
        reason="",
        message=record.message if again else "",
        pinned=pinned,
        resident_tokens=record.tokens,
        pinned_tokens=record.tokens if hard else 0,
        warm_seconds=record.warm_seconds if again else seconds,
        failures=0,
        settled=False,
        released=None,
        touch_at=touch_at if pinned is Pinning.SOFT else FOREVER,
    )
    if hard:
        return replace(record, pin_failures=0, pin_reason="", pin_message="")
    return record


def explained(record: Record, message: str) -> Record:
    """Say where the tokens of a warm prefix came from."""
    return replace(record, message=message) if record.phase is Phase.WARM else record


def pin_refused(
    record: Record, failure: Failure, now: float, first: float = PIN_BACKOFF_S
) -> Record:
    """The pin can't be had now: the prefix is warmed without, and the pin is tried again later.

    ``first`` is the wait after the first refusal in seconds; it doubles with every other.
    """
    failures = record.pin_failures + 1
    return replace(
        record,
        pin_failures=failures,
        pin_reason=failure.reason,
        pin_message=failure.message,
        pin_retry_at=now + backoff(failures, first, MAX_PIN_BACKOFF_S),
        pin_force_at=now + MAX_PIN_BACKOFF_S,
    )


def not_had(record: Record, failure: Failure, now: float) -> Record:
    """Neither pin nor warm-up came about: a warm prefix stays so without, a missing one failed."""
    if record.phase is Phase.WARM:
        return pin_refused(record, failure, now)
    return failed(record, failure, now)


def touched(record: Record, cached_tokens: int | None, now: float, touch_at: float) -> Record:
    """A soft pin was used; ``cached_tokens`` of it were there, None if the engine doesn't say."""
    if record.head is None or record.phase is not Phase.WARM:
        return record
    if cached_tokens is None or cached_tokens >= record.head.tokens:
        return replace(record, touch_at=touch_at)
    return replace(rewarmed(record, now), soft_evictions=record.soft_evictions + 1)


def complete(view: PinView | None, head: Head) -> bool:
    """Return whether the engine's evidence covers the whole head."""
    return view is not None and view.whole and view.tokens == head.tokens
