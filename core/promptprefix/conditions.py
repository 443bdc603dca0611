"""Status of a resource: one verdict per pass, from which conditions, Events and logs are told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from promptprefix.demand import ALWAYS, Demand
from promptprefix.fleet import Prefix
from promptprefix.holdings import Crew, Holding, crew_of
from promptprefix.reasons import ConditionType, Reason
from promptprefix.resource import (
    MAX_LINT,
    MAX_PROBLEMS,
    Condition,
    OnIdle,
    Pinning,
    Problem,
    PromptPrefixStatus,
)
from promptprefix.shortlist import shortlist
from promptprefix.versions import version_statuses
from promptprefix.wire import Phase, PlacementState

_EDIT_NEEDED = frozenset({Reason.NO_STATIC_HEAD, Reason.INVALID_CONTENT, Reason.INVALID_TOOLS})
_REASON_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_PODS_NAMED = 3
_MESSAGE_CHARS = 1_024


@dataclass(frozen=True)
class Shortfall:
    """Why too few pods can hold the prefix."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Outlook:
    """What a resource's status is told from.

    ``wanted`` counts the pods that should hold it; ``holders`` names the pods that may still
    hold any version of it, and ``releasing`` those that have not yet released one that they were
    told to release. ``warm_pods`` and ``matched`` are by version id: the pods that hold it
    warm, and the latest match that an engine tells of. ``holdings`` may be left out of a prefix
    that is held, where the crew is ``known``.
    """

    prefix: Prefix
    wanted: int
    holdings: tuple[Holding, ...]
    shortfall: Shortfall | None = None
    obstacles: tuple[Problem, ...] = ()
    holders: tuple[str, ...] = ()
    demand: Demand = ALWAYS
    releasing: tuple[str, ...] = ()
    warm_pods: Mapping[str, int] = field(default_factory=dict)
    matched: Mapping[str, datetime] = field(default_factory=dict)
    known: Crew | None = None

    @cached_property
    def crew(self) -> Crew:
        """The chosen pods."""
        return crew_of(self.holdings) if self.known is None else self.known

    @property
    def unsound(self) -> tuple[Holding, ...]:
        """The pods that are not as good as they can be."""
        return self.crew.unsound


@dataclass(frozen=True)
class Verdict:
    """Whether the state wanted now is reached; if not, why, and what to do."""

    ready: bool
    reason: Reason
    message: str
    stalled: bool = False


def status_of(outlook: Outlook, now: datetime) -> PromptPrefixStatus:
    """Return the status; transition times move to ``now`` only where a condition flips."""
    prefix = outlook.prefix
    verdict = judge(outlook)
    crew = outlook.crew
    tokens, blocks = crew.size
    transition = outlook.demand.next_transition
    return PromptPrefixStatus(
        observedGeneration=prefix.generation,
        fingerprint=prefix.version.fingerprint if prefix.version is not None else "",
        tokens=tokens,
        blocks=blocks,
        desiredPods=outlook.wanted,
        warmPods=crew.warm,
        pinnedPods=crew.pinned,
        warm=f"{crew.warm}/{outlook.wanted}",
        versions=version_statuses(prefix, outlook.warm_pods, outlook.matched, now),
        activeWindow=outlook.demand.window,
        nextTransitionTime=transition and transition.replace(microsecond=0),
        problems=sorted(_problems(outlook), key=lambda each: (each.pod, each.reason))[
            :MAX_PROBLEMS
        ],
        lint=list(prefix.lint[:MAX_LINT]),
        conditions=list(_conditions(outlook, verdict, now)),
    )


def judge(outlook: Outlook) -> Verdict:
    """Return the verdict; the first that applies wins."""
    for verdict in _VERDICTS:
        if (found := verdict(outlook)) is not None:
            return found
    return _reached(outlook)


def _invalid(outlook: Outlook) -> Verdict | None:
    if outlook.prefix.spec is not None:
        return None
    refusal = outlook.prefix.refusal
    message = refusal.message if refusal is not None else "The spec can't be read."
    return Verdict(False, Reason.INVALID_SPEC, message, stalled=True)


def _suspended(outlook: Outlook) -> Verdict | None:
    spec = outlook.prefix.spec
    if spec is None or not spec.suspend:
        return None
    if outlook.holders:
        message = f"Suspended: being released on {_names(outlook.holders)}."
        return Verdict(False, Reason.SUSPENDED, message)
    message = "Suspended and released everywhere: set spec.suspend to false to warm it again."
    return Verdict(True, Reason.SUSPENDED, message)


def _refused(outlook: Outlook) -> Verdict | None:
    refusal = outlook.prefix.refusal
    if refusal is None:
        return None
    return Verdict(False, refusal.reason, refusal.message, stalled=refusal.stalled)


def _unreadable_windows(outlook: Outlook) -> Verdict | None:
    invalid = outlook.demand.invalid
    if not invalid:
        return None
    return Verdict(False, Reason.INVALID_WINDOW, _cut(invalid), stalled=True)


def _hopeless(outlook: Outlook) -> Verdict | None:
    for holding in outlook.unsound:
        state = holding.state
        if state is not None and state.phase is Phase.FAILED and state.reason in _EDIT_NEEDED:
            return Verdict(False, Reason(state.reason), _told(holding.pod, state), stalled=True)
    return None


def _cold(outlook: Outlook) -> Verdict | None:
    """Return the verdict on a prefix that is not to be held."""
    demand = outlook.demand
    if demand.held:
        return None
    held = {holding.pod for holding in outlook.holdings if not holding.released}
    if releasing := held.union(outlook.releasing):
        message = f"Being released on {_names(releasing)}. {demand.message}"
        return Verdict(False, Reason.RELEASING, _cut(message))
    told = f"Released. {demand.message}"
    if kept := [holding for holding in outlook.holdings if _falls_short(holding, demand)]:
        names = _names([holding.pod for holding in kept])
        told = f"{told} Left to the engine's LRU on {names}: {_kept_reason(kept[0], demand)}"
    return Verdict(True, Reason.RELEASED, _cut(told))


def _falls_short(holding: Holding, demand: Demand) -> bool:
    """Whether the blocks were left alone though they were to be dropped."""
    state = holding.state
    if state is None or not holding.serving or state.phase is not Phase.RELEASED:
        return False
    return demand.release is not OnIdle.KEEP and state.released is OnIdle.KEEP


def _kept_reason(holding: Holding, demand: Demand) -> str:
    if holding.state is not None and holding.state.message:
        return holding.state.message
    if demand.release is OnIdle.OFFLOAD:
        return (
            "its engine has no offload tier: give it a KV connector that offloads, or set "
            "spec.onIdle to Keep or Evict."
        )
    return "its engine can't drop single prefixes: that needs the engine plugin."


def _short(outlook: Outlook) -> Verdict | None:
    if outlook.shortfall is None:
        return None
    return Verdict(False, outlook.shortfall.reason, outlook.shortfall.message)


def _failed(outlook: Outlook) -> Verdict | None:
    for holding in outlook.unsound:
        if holding.state is not None and holding.state.phase is Phase.FAILED:
            reason = _reason(holding.state, Reason.WARM_FAILED)
            known = Reason(reason) if reason in set(Reason) else Reason.WARM_FAILED
            return Verdict(False, known, _told(holding.pod, holding.state))
    return None


def _warming(outlook: Outlook) -> Verdict | None:
    cold = [holding.pod for holding in outlook.unsound if not holding.warm]
    cold += outlook.crew.waiting
    if outlook.crew.count < outlook.wanted:
        message = "Waits for the sidecars to report what their pods hold."
        return Verdict(False, Reason.RECONCILING, message)
    if not cold:
        return None
    down = [holding.pod for holding in outlook.unsound if not holding.serving]
    warm = f"Warm on {outlook.crew.count - len(cold)} of {outlook.wanted} pods"
    if len(down) == len(cold):
        message = (
            f"{warm}; the engine is down on {_names(down)}: it is warmed again when it is back."
        )
        return Verdict(False, Reason.ENGINE_NOT_HEALTHY, message)
    return Verdict(False, Reason.WARMING, f"{warm}; warming on {_names(cold)}.")


def _reached(outlook: Outlook) -> Verdict:
    tokens, blocks = outlook.crew.size
    text = f"Warm on {_count(outlook.crew.count, 'pod')}: {tokens} tokens in {blocks} blocks"
    soft = outlook.unsound
    if outlook.prefix.pinning is Pinning.HARD and soft:
        why = _soft_reason(soft[0])
        names = _names([holding.pod for holding in soft])
        return Verdict(True, Reason.SOFT_PINNED, _cut(f"{text}, not hard-pinned on {names}: {why}"))
    how = {Pinning.HARD: "hard-pinned", Pinning.SOFT: "kept recent", Pinning.NONE: "not pinned"}
    return Verdict(True, Reason.WARM, f"{text}, {how[outlook.prefix.pinning]}.")


_VERDICTS = (
    _invalid,
    _suspended,
    _unreadable_windows,
    _refused,
    _hopeless,
    _cold,
    _short,
    _failed,
    _warming,
)
"""Each returns a verdict where it applies; the strongest is first."""


def _conditions(outlook: Outlook, verdict: Verdict, now: datetime) -> Iterator[Condition]:
    present = {condition.type: condition for condition in outlook.prefix.conditions}
    this_second = now.replace(microsecond=0)
    for kind, holds, reason, message in _claims(outlook, verdict):
        status: Literal["True", "False"] = "True" if holds else "False"
        before = present.get(kind)
        unchanged = before is not None and before.status == status
        yield Condition(
            type=kind,
            status=status,
            observedGeneration=outlook.prefix.generation,
            lastTransitionTime=before.lastTransitionTime
            if before is not None and unchanged
            else this_second,
            reason=reason,
            message=message,
        )


def _claims(
    outlook: Outlook, verdict: Verdict
) -> Iterator[tuple[ConditionType, bool, Reason, str]]:
    demand = outlook.demand
    yield ConditionType.READY, verdict.ready, verdict.reason, verdict.message
    active = _cut(" ".join((demand.message, *outlook.prefix.notes)))
    yield ConditionType.ACTIVE, demand.held, demand.reason, active
    yield ConditionType.WARM, verdict.ready and demand.held, verdict.reason, verdict.message
    if verdict.ready:
        reached = "The wanted state is reached."
        yield ConditionType.RECONCILING, False, Reason.RECONCILED, reached
    elif verdict.stalled:
        waits = "Waits for an edit: see the condition Stalled."
        yield ConditionType.RECONCILING, False, verdict.reason, waits
    else:
        yield ConditionType.RECONCILING, True, verdict.reason, verdict.message
    if verdict.stalled:
        yield ConditionType.STALLED, True, verdict.reason, verdict.message
    else:
        yield ConditionType.STALLED, False, Reason.NOT_STALLED, "Nothing needs an edit."


def _problems(outlook: Outlook) -> Iterator[Problem]:
    if not outlook.demand.held:
        yield from _kept_problems(outlook)
        return
    yield from outlook.obstacles
    for holding in outlook.unsound:
        state = holding.state
        if not holding.serving:
            told = "The engine is down: see its log; the prefix is warmed again when it is back."
            yield Problem(pod=holding.pod, reason=Reason.ENGINE_NOT_HEALTHY, message=told)
            continue
        if state is None:
            continue
        if state.phase is Phase.FAILED:
            reason = _reason(state, Reason.WARM_FAILED)
            yield Problem(pod=holding.pod, reason=reason, message=_cut(state.message))
        elif holding.warm and not holding.pinned and outlook.prefix.pinning is Pinning.HARD:
            reason = _reason(state, Reason.SOFT_PINNED)
            yield Problem(pod=holding.pod, reason=reason, message=_cut(_soft_reason(holding)))


def _kept_problems(outlook: Outlook) -> Iterator[Problem]:
    demand = outlook.demand
    offloads = demand.release is OnIdle.OFFLOAD
    default = Reason.NO_OFFLOAD_TIER if offloads else Reason.NOT_EVICTABLE
    for holding in outlook.holdings:
        if holding.state is not None and _falls_short(holding, demand):
            reason, message = _reason(holding.state, default), _kept_reason(holding, demand)
            yield Problem(pod=holding.pod, reason=reason, message=_cut(message))


def _reason(state: PlacementState, default: Reason) -> str:
    """Return the sidecar's word if it is a word that a condition can carry."""
    return state.reason if _REASON_WORD.fullmatch(state.reason) else default


def _soft_reason(holding: Holding) -> str:
    told = holding.state.message if holding.state is not None else ""
    engine = holding.engine.soft_reason if holding.engine is not None else ""
    return told or engine or "the sidecar gives no reason."


def _told(pod: str, state: PlacementState) -> str:
    return _cut(f"{pod}: {state.message or 'the sidecar gives no reason.'}")


def _names(pods: Iterable[str]) -> str:
    names = sorted(pods)
    return shortlist(names[:_PODS_NAMED], len(names))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARS else f"{text[: _MESSAGE_CHARS - 1]}…"
