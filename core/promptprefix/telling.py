"""What a plan says of a resource: the status, told anew only when it may say something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from promptprefix.circles import Circle
from promptprefix.conditions import Outlook, Shortfall, status_of
from promptprefix.dossier import Dossier
from promptprefix.draft import Draft
from promptprefix.eligibility import Standing, shortfall
from promptprefix.fleet import Limits
from promptprefix.refusals import Takers, capped, refused_pods
from promptprefix.resource import MAX_PROBLEMS, Problem
from promptprefix.roster import Station


def status_for(dossier: Dossier, takers: Takers, limits: Limits, now: datetime) -> None:
    """Bring the status to the present; its transitions are dated ``now`` when told first."""
    draft = dossier.draft
    crowded = _crowded(draft, dossier, takers, limits)
    told = (
        dossier.notes.status_mark,
        dossier.sizes,
        _surroundings(draft, crowded),
        draft.demand,
        draft.priority,
        draft.wanted,
        draft.chosen,
        crowded,
    )
    if dossier.status is not None and dossier.told == told:
        return
    dossier.told = told
    outlook = _outlook(draft, dossier, takers, crowded)
    if dossier.status is None or dossier.outlook != outlook:
        dossier.outlook = outlook
        dossier.status = status_of(outlook, now)


def _surroundings(draft: Draft, crowded: Shortfall | None) -> object:
    """Return what the status tells of other pods than those that were chosen and serve."""
    circle = draft.circle
    if circle is None or draft.resting or crowded is None:
        return circle if looks_around(draft) else None
    refused = circle.eligible[: MAX_PROBLEMS + len(draft.claims)]
    engines = [each.candidate.engine for each in refused]
    # These decide how much room it takes there.
    taken = draft.sizes, [engine.block_size for engine in engines if engine is not None]
    return circle.obstacles, refused, taken


def looks_around(draft: Draft) -> bool:
    """Whether it matters to the status how other pods stand, or those that are asleep."""
    return draft.every or draft.missing > 0 or not draft.chosen or draft.resting > 0


def _crowded(draft: Draft, dossier: Dossier, takers: Takers, limits: Limits) -> Shortfall | None:
    """Return why it is on too few pods, if that is because they have no room."""
    circle = draft.circle
    if circle is None or not draft.demand.held or draft.prefix.refusal is not None:
        return None
    current = dossier.current
    if draft.varied and current is not None:
        behind = len(draft.chosen) - len(draft.holders.get(current.id, ()))
        if behind:
            return takers.shortfall(draft, circle, limits, behind)
    if draft.missing <= 0:
        return None
    eligible = sum(circle.standing[each] is Standing.ELIGIBLE for each in draft.chosen)
    if eligible >= min(draft.wanted, len(circle.eligible)):
        return None
    return takers.shortfall(draft, circle, limits)


def _outlook(draft: Draft, dossier: Dossier, takers: Takers, crowded: Shortfall | None) -> Outlook:
    prefix, spec, circle = draft.prefix, draft.prefix.spec, draft.circle
    short = crowded
    obstacles: tuple[Problem, ...] = ()
    if spec is not None and circle is not None and draft.demand.held:
        counted = len(draft.chosen) - draft.resting
        if short is None and (draft.missing > 0 or not counted):
            candidates = [each.candidate for each in circle.selected]
            short = shortfall(spec, prefix.namespace, candidates)
        if short is not None or draft.every:
            obstacles = _obstacles(draft, circle, takers, crowded is not None)
    note, counted_pods = capped(draft), _counted(draft)
    return Outlook(
        prefix=replace(prefix, notes=(*prefix.notes, note)) if note else prefix,
        wanted=draft.wanted,
        holdings=() if draft.demand.held else dossier.holdings(counted_pods),
        known=dossier.crew(counted_pods) if draft.demand.held else None,
        obstacles=obstacles,
        shortfall=short,
        holders=_holders(draft, dossier),
        demand=draft.demand,
        releasing=_releasing(draft, dossier),
        warm_pods=dossier.notes.warm_pods,
        matched=dossier.notes.shown,
    )


def _counted(draft: Draft) -> Sequence[Station]:
    """Return the pods that the status counts: all but those asleep that others stand in for."""
    circle = draft.circle
    if circle is None or not draft.resting:
        return draft.chosen
    return [each for each in draft.chosen if circle.standing[each] is not Standing.ASLEEP]


def _obstacles(draft: Draft, circle: Circle, takers: Takers, crowded: bool) -> tuple[Problem, ...]:
    """Return what keeps pods from holding it, as many as a status lists, by pod."""
    asleep, claims = Standing.ASLEEP, draft.claims
    found = (
        problem
        for station, problem in circle.obstacles
        if station not in claims or circle.standing[station] is asleep
    )
    problems = list(islice(found, MAX_PROBLEMS))
    if crowded:
        problems += refused_pods(draft, circle, takers)
    return tuple(problems)


def _holders(draft: Draft, dossier: Dossier) -> tuple[str, ...]:
    """Return the pods that may still hold it, where it is not to be held."""
    if draft.demand.held:
        return ()
    notes = dossier.notes.by_station.items()
    return tuple(sorted(each.candidate.pod.name for each, note in notes if note.account.holds))


def _releasing(draft: Draft, dossier: Dossier) -> tuple[str, ...]:
    """Return the pods that have not let go what they were to let go.

    Those that are told to release the declared text are left out: their reports tell.
    """
    if draft.demand.held or draft.circle is None:
        return ()
    found = (
        station.candidate.pod.name
        for station, note in dossier.notes.by_station.items()
        if note.lingers or (station not in draft.claims and note.held)
    )
    return tuple(sorted(found))
