"""Why a prefix finds no room in the pin budgets, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from promptprefix.budget import UNLIMITED
from promptprefix.circles import Circle
from promptprefix.conditions import Shortfall
from promptprefix.draft import Draft
from promptprefix.eligibility import Standing
from promptprefix.fleet import Limits
from promptprefix.heads import NOTHING
from promptprefix.reasons import Reason
from promptprefix.resource import MAX_PROBLEMS, Problem
from promptprefix.roster import Station
from promptprefix.shortlist import shortlist

_NAMED = 3
_LIMITS = "the chart's value limits"
_UNSIZED = "Prefixes of lower priority make room for it when its size is known."


class Taker(NamedTuple):
    """A prefix that holds room, and how many blocks it has where it has most."""

    name: str
    priority: int
    blocks: int


class Takers:
    """Who holds room on the pods of circles, those that hold most first, in one plan."""

    def __init__(self, drafts: Sequence[Draft], before: Takers | None = None) -> None:
        self._drafts = drafts
        # Equal problems are the same object from plan to plan, so that statuses compare fast.
        self._known: Mapping[tuple[Station, int], Problem] = {}
        if before is not None:
            self._known = before._problems or before._known
        self._all: dict[Circle, Sequence[Taker]] = {}
        self._stronger: dict[tuple[Circle, int], Sequence[Taker]] = {}
        self._names: dict[tuple[Circle, int], set[str]] = {}
        self._said: dict[tuple[Circle, int], str] = {}
        self._lowest: dict[tuple[Circle, int], int] = {}
        self._budgets: dict[Circle, int] = {}
        self._shortfalls: dict[tuple[object, ...], Shortfall] = {}
        self._problems: dict[tuple[Station, int], Problem] = {}

    def of(self, draft: Draft, circle: Circle) -> str:
        """Say who they are that a prefix can't displace; empty if there are none."""
        found, name = self._those(draft, circle), draft.prefix.name
        key = (circle, draft.priority)
        if key not in self._names:
            self._names[key] = {each.name for each in found}
            self._said[key] = _who(found, len(found))
        if not draft.chosen or name not in self._names[key]:
            return self._said[key]
        first = [each for each in found[: _NAMED + 1] if each.name != name]
        return _who(first, len(found) - 1)

    def _those(self, draft: Draft, circle: Circle) -> Sequence[Taker]:
        key = (circle, draft.priority)
        if key not in self._stronger:
            if circle not in self._all:
                self._all[circle] = _takers(self._drafts, circle)
            self._stronger[key] = [
                each for each in self._all[circle] if each.priority >= draft.priority
            ]
        return self._stronger[key]

    def lowest(self, draft: Draft, circle: Circle) -> int:
        """Return the lowest priority of those that a prefix can't displace."""
        key = (circle, draft.priority)
        if key not in self._lowest:
            priorities = (each.priority for each in self._those(draft, circle))
            self._lowest[key] = min(priorities, default=draft.priority)
        return self._lowest[key]

    def shortfall(self, draft: Draft, circle: Circle, limits: Limits, behind: int = 0) -> Shortfall:
        """Return why a prefix is on fewer pods than it could be on.

        ``behind`` counts the pods that keep the text before, because the declared one has no room.
        """
        need = draft.sizes.declared(circle.eligible[0]).blocks if circle.eligible else 0
        if draft.chosen or draft.measuring is not None:
            return _no_room(draft, circle, self, limits, need, behind)
        spec = draft.prefix.spec
        asked = None if spec is None else spec.priority
        # Those that are on no pod, and ask for the same, are told the same.
        key = (circle, draft.priority, asked, need, draft.sized)
        if (found := self._shortfalls.get(key)) is None:
            found = self._shortfalls[key] = _no_room(draft, circle, self, limits, need, behind)
        return found

    def budget(self, circle: Circle) -> int:
        """Return the largest budget of the pods."""
        if circle not in self._budgets:
            budgets = (each.ledger.budget for each in circle.eligible)
            self._budgets[circle] = max(budgets, default=0)
        return self._budgets[circle]

    def problem(self, station: Station, need: int) -> Problem:
        """Return the problem of a pod that has no room for so many blocks."""
        key = (station, need)
        found = self._problems.get(key) or self._known.get(key)
        if found is None:
            found = Problem(
                pod=station.candidate.pod.name,
                reason=Reason.BUDGET_EXCEEDED,
                message=f"The pin budget of this pod has no room for its {need} blocks.",
            )
        self._problems[key] = found
        return found


def _takers(drafts: Sequence[Draft], circle: Circle) -> Sequence[Taker]:
    found, standing = [], circle.standing
    for draft in drafts:
        most, last = 0, NOTHING
        for station, footprint in draft.claims.items():
            # Most have the same room on all their pods.
            if footprint is last or footprint.blocks <= most:
                continue
            if standing.get(station) is Standing.ELIGIBLE:
                most, last = footprint.blocks, footprint
        if most:
            found.append(Taker(draft.prefix.name, draft.priority, most))
    return sorted(found, key=lambda each: (-each.blocks, -each.priority, each.name))


def _no_room(
    draft: Draft, circle: Circle, known: Takers, limits: Limits, need: int, behind: int
) -> Shortfall:
    budget = known.budget(circle)
    size = f"{need} blocks{_estimated(draft)}"
    share, widen = "", "the pin budget or"
    if limits.budget_share < 1:
        part = f"{limits.budget_share:.0%} of the pin budget"
        share = f" (namespace {draft.prefix.namespace} may use {part})"
        widen = f"that share ({_LIMITS}), the pin budget or"
    if need > budget:
        return Shortfall(
            Reason.BUDGET_EXCEEDED,
            f"{_placed(draft, behind)}It takes {size}, but pins may take at most {budget} "
            f"on a pod{share}: shorten the text, or raise {widen} the size of the engines' KV "
            "cache.",
        )
    most = f" of {budget}" if budget < UNLIMITED else ""
    ways = _help(draft, known.lowest(draft, circle), limits) if draft.sized else _UNSIZED
    return Shortfall(
        Reason.BUDGET_EXCEEDED,
        f"{_placed(draft, behind)}No room for its {size} in the pin budget{most}{share} "
        f"of any {'' if behind or not draft.chosen else 'other '}pod. "
        f"{known.of(draft, circle)}{ways}",
    )


def _estimated(draft: Draft) -> str:
    """Say that the size is not known yet; empty if it is."""
    if draft.measuring is None:
        return ""
    return f" (an estimate: it is being measured on {draft.measuring.candidate.pod.name})"


def _placed(draft: Draft, behind: int) -> str:
    """Say where it is nevertheless; empty if nowhere."""
    counted = len(draft.chosen) - draft.resting
    if behind:
        return f"The text before stays on {behind} of {counted} pods. "
    return f"Placed on {counted} of {draft.wanted} pods. " if counted else ""


def _who(takers: Sequence[Taker], total: int) -> str:
    if not total:
        return ""
    named = [
        f"{each.name} (priority {each.priority}, {each.blocks} blocks)" for each in takers[:_NAMED]
    ]
    return f"Room is taken by {shortlist(named, total)}. "


def _help(draft: Draft, lowest: int, limits: Limits) -> str:
    spec = draft.prefix.spec
    ways = "shorten texts, lower replicas, add pods or raise the pin budget"
    if limits.budget_share < 1:
        ways += f" or the namespace's share of it ({_LIMITS})"
    if spec is not None and spec.priority > draft.priority:
        return (
            f"What would help: {ways}. Its priority {spec.priority} counts as {draft.priority}, "
            f"the highest in namespace {draft.prefix.namespace}."
        )
    if lowest >= limits.max_priority:
        return (
            f"What would help: {ways}. A higher priority would not: {limits.max_priority} is the "
            f"highest that counts in namespace {draft.prefix.namespace}."
        )
    return f"What would help: a priority above {lowest}, or {ways}."


def capped(draft: Draft) -> str:
    """Say that the namespace caps the priority; empty if it doesn't."""
    spec = draft.prefix.spec
    if spec is None or spec.priority <= draft.priority:
        return ""
    return (
        f"Its priority {spec.priority} counts as {draft.priority}, the highest that namespace "
        f"{draft.prefix.namespace} may use."
    )


def refused_pods(draft: Draft, circle: Circle, known: Takers) -> Iterable[Problem]:
    """Yield the problem of pods that have no room, as many as a status lists."""
    told = 0
    for station in circle.eligible:
        if station in draft.claims:
            continue
        yield known.problem(station, draft.sizes.declared(station).blocks)
        told += 1
        if told == MAX_PROBLEMS:
            return
