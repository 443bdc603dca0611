"""Whether a prefix is to be held just now, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.durations import parse_duration
from promptprefix.fleet import Override, Prefix
from promptprefix.reasons import ConditionType, Reason
from promptprefix.resource import Condition, OnIdle, PromptPrefixSpec
from promptprefix.versions import UNTOLD
from promptprefix.windows import Calendar, Hours


@dataclass(frozen=True)
class Evidence:
    """What is known of a prefix's use.

    ``last_matched`` is the latest request that matched it, on any pod and in any version.
    ``visible``: somebody tells of matches, a router or the plugin of an engine that counts them.
    """

    last_matched: datetime | None = None
    visible: bool = False


@dataclass(frozen=True)
class Demand:
    """Whether a prefix is to be held.

    ``window`` names the open peak window, whoever decides. ``next_transition`` is when windows or
    annotations begin or cease to hold it next; ``wake_at`` the earliest moment at which the clock
    alone may change the answer. ``release`` is what becomes of the blocks where it is not held.
    ``invalid`` names the fields of windows that can't be read; empty if there are none.
    """

    held: bool
    reason: Reason
    message: str
    window: str = ""
    next_transition: datetime | None = None
    wake_at: datetime | None = None
    release: OnIdle = OnIdle.KEEP
    invalid: str = ""


_LET_GO = (Reason.IDLE, Reason.OUTSIDE_WINDOWS)


def let_go(conditions: Iterable[Condition]) -> bool:
    """Return whether these conditions say that a resource was let go for want of matches."""
    return any(
        each.type == ConditionType.ACTIVE and each.status == "False" and each.reason in _LET_GO
        for each in conditions
    )


_FAR = timedelta(days=3_653)
"""An order that ends farther ahead, by ten years, is one without an end."""

ALWAYS = Demand(True, Reason.HELD, "Held at all times.")


def demand(prefix: Prefix, evidence: Evidence, now: datetime, calendar: Calendar) -> Demand:
    """Return whether ``prefix`` is to be held at ``now``; the first rule that applies wins."""
    spec = prefix.spec
    if spec is None:
        return Demand(False, Reason.INVALID_SPEC, "The spec can't be read.")
    if prefix.deleting:
        return Demand(False, Reason.RELEASING, "Being deleted.")
    if spec.suspend:
        return Demand(False, Reason.SUSPENDED, "Suspended by spec.suspend.")
    prefix, nearing = _without_far_ends(prefix, now)
    hours = calendar.hours(spec.windows, now)
    used_until = _used_until(prefix, spec, evidence)
    transition = _transition(prefix, spec, hours, now, calendar)
    ends = (each.until for each in (prefix.unpin, prefix.warm_now) if each is not None)
    edges = (hours.until, transition, used_until, *ends, *nearing)
    held, reason, message = _decide(prefix, spec, evidence, hours, used_until, now)
    unasked = reason is Reason.UNPINNED or bool(hours.errors)
    return Demand(
        held=held,
        reason=reason,
        message=message,
        window=hours.window,
        next_transition=transition,
        wake_at=min((each for each in edges if each is not None and each > now), default=None),
        release=OnIdle.KEEP if unasked else spec.onIdle,
        invalid="; ".join(hours.errors),
    )


def _decide(
    prefix: Prefix,
    spec: PromptPrefixSpec,
    evidence: Evidence,
    hours: Hours,
    used_until: datetime | None,
    now: datetime,
) -> tuple[bool, Reason, str]:
    if _active(prefix.unpin, now):
        ends = _until(prefix.unpin)
        return False, Reason.UNPINNED, f"Its pins are given up by the annotation {UNPIN}{ends}."
    if _active(prefix.warm_now, now):
        ends = _until(prefix.warm_now)
        return True, Reason.WARM_NOW, f"Held by the annotation {WARM_NOW}{ends}."
    if hours.window:
        ends = f"; the windows hold it until {_told(hours.change)}" if hours.change else ""
        return True, Reason.IN_WINDOW, f"In the peak window {hours.window}{ends}."
    if hours.ahead:
        opens = f", which opens at {_told(hours.opens)}" if hours.opens else ""
        return True, Reason.LEAD_TIME, f"In the lead time of the peak window {hours.ahead}{opens}."
    if spec.idleTTL is None and not spec.windows:
        return True, ALWAYS.reason, ALWAYS.message
    if spec.idleTTL is not None:
        if not evidence.visible:
            return True, Reason.IN_USE, _UNSEEN
        if used_until is not None and now < used_until:
            used = "Matched" if spec.windows else "Matched, edited or created"
            return True, Reason.IN_USE, f"{used} within spec.idleTTL ({spec.idleTTL})."
    again = " or at its next match" if spec.idleTTL is not None else ""
    if spec.windows:
        begins = f"from {_told(hours.change)}" if hours.change else "in none that is known"
        message = f"Outside its peak windows: held again {begins}{again}."
        return False, Reason.OUTSIDE_WINDOWS, message
    message = f"No match within spec.idleTTL ({spec.idleTTL}): held again at its next match."
    return False, Reason.IDLE, message


_UNSEEN = (
    "Held whatever spec.idleTTL says: nobody tells of its matches. That takes the router, or a pod "
    "on which the engine plugin has pinned it since the engine started."
)


def _used_until(prefix: Prefix, spec: PromptPrefixSpec, evidence: Evidence) -> datetime | None:
    """Return until when its latest use holds it; without windows it is used when it is declared."""
    if spec.idleTTL is None or not evidence.visible:
        return None
    matched = evidence.last_matched
    uses = [None if matched is None else matched + UNTOLD]
    if not spec.windows:
        uses += [prefix.created, prefix.version.since if prefix.version is not None else None]
    latest = max((each for each in uses if each is not None), default=None)
    return None if latest is None else latest + parse_duration(spec.idleTTL)


def _transition(
    prefix: Prefix, spec: PromptPrefixSpec, hours: Hours, now: datetime, calendar: Calendar
) -> datetime | None:
    """Return when windows and annotations, the idle time left aside, change their answer next."""
    always = not spec.windows and spec.idleTTL is None

    def held(at: datetime, told: Hours) -> bool:
        if _active(prefix.unpin, at):
            return False
        return _active(prefix.warm_now, at) or always or told.holding

    before, at, told = held(now, hours), now, hours
    while (override := _strongest(prefix, at)) is not None:
        if override.until is None:
            return None
        at, told = override.until, calendar.ahead(spec.windows, override.until)
        if held(at, told) is not before:
            return at
    return told.change


def _without_far_ends(prefix: Prefix, now: datetime) -> tuple[Prefix, Sequence[datetime]]:
    """Return it with orders that end too far ahead as endless, and when those are so no more."""
    orders = (prefix.unpin, prefix.warm_now)
    ends = (each.until for each in orders if each is not None and each.until is not None)
    far = [until for until in ends if until - now > _FAR]
    if not far:
        return prefix, ()
    unpin, warm_now = (
        Override() if each is not None and each.until in far else each for each in orders
    )
    return replace(prefix, unpin=unpin, warm_now=warm_now), [until - _FAR for until in far]


def _strongest(prefix: Prefix, at: datetime) -> Override | None:
    """Return the order of a person on call that decides at ``at``."""
    orders = (prefix.unpin, prefix.warm_now)
    return next((each for each in orders if each is not None and _active(each, at)), None)


def _active(override: Override | None, at: datetime) -> bool:
    return override is not None and (override.until is None or at < override.until)


def _until(override: Override | None) -> str:
    return f" until {_told(override.until)}" if override is not None and override.until else ""


def _told(time: datetime | None) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if time is not None else ""
