"""The planner: which pods hold which prefix, what the router sees, and what the status says.

`plan` is a pure function of one snapshot. Holders that stay eligible stay; what is missing goes to
the pods with the fewest placements, ties broken by a rendezvous hash, so that equal snapshots give
equal plans.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from promptprefix.conditions import Holding, Outlook, Shortfall, status_of
from promptprefix.demand import ALWAYS, Demand, Evidence, demand
from promptprefix.eligibility import Candidate, Standing, candidate, obstacle, shortfall
from promptprefix.fleet import Prefix, Snapshot, Version
from promptprefix.resource import Problem, PromptPrefixStatus
from promptprefix.routes import endpoints_of, route_prefixes_of
from promptprefix.versions import kept_until, retained
from promptprefix.windows import Calendar
from promptprefix.wire import HARD_PINS, Phase, Placement, RouteEndpoint, RoutePrefix


@dataclass(frozen=True)
class Plan:
    """What should be.

    ``desired`` maps the uid of each connected pod to its whole set. ``statuses`` maps the uids of
    resources, but for those that are being deleted or about which it is too early to speak;
    ``kept`` holds the ids of all versions that some pod should hold. ``wake_at`` is the earliest
    moment at which the clock alone may change the plan.
    """

    desired: Mapping[str, tuple[Placement, ...]]
    prefixes: tuple[RoutePrefix, ...]
    endpoints: tuple[RouteEndpoint, ...]
    statuses: Mapping[str, PromptPrefixStatus]
    kept: frozenset[str]
    wake_at: datetime | None = None


@dataclass(frozen=True)
class _Choice:
    """One resource's pods. ``selected`` match its selector; ``chosen`` should hold it.

    ``awaited``: it is too early to add or say anything; what is held stays.
    """

    prefix: Prefix
    selected: tuple[Candidate, ...]
    wanted: int
    chosen: tuple[Candidate, ...]
    awaited: bool = False
    demand: Demand = ALWAYS


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan for ``snapshot``; ``now`` dates the transitions of conditions."""
    candidates = _candidates(snapshot)
    prefixes = sorted(snapshot.prefixes, key=lambda prefix: (prefix.namespace, prefix.name))
    calendar = Calendar()
    demands = {
        prefix.uid: demand(prefix, _evidence(prefix, candidates, snapshot), now, calendar)
        for prefix in prefixes
    }
    choices = _spread(prefixes, candidates, demands, settling=snapshot.settling)
    sets: dict[str, list[Placement]] = {
        each.pod.uid: [] for group in candidates.values() for each in group if each.connected
    }
    placements: dict[str, Placement] = {}
    for choice in choices:
        for each in choice.chosen:
            for version in _versions_on(choice, each, snapshot, now):
                if version.id not in placements:
                    placements[version.id] = _placement(choice, version)
                sets[each.pod.uid].append(placements[version.id])
    desired = {uid: tuple(held) for uid, held in sets.items()}
    holders = _holders(prefixes, candidates)
    return Plan(
        desired=desired,
        prefixes=route_prefixes_of(prefixes, candidates, desired),
        endpoints=endpoints_of(candidates, desired),
        statuses={
            choice.prefix.uid: status_of(_outlook(choice, holders), now)
            for choice in choices
            if not choice.prefix.deleting and not choice.awaited
        },
        kept=frozenset(placement.id for each in desired.values() for placement in each),
        wake_at=min(_wakes(choices, demands, snapshot, now), default=None),
    )


def _evidence(
    prefix: Prefix, candidates: Mapping[str, Sequence[Candidate]], snapshot: Snapshot
) -> Evidence:
    holders = [each for each in candidates.get(prefix.namespace, ()) if prefix.uid in each.holds]
    known = [version for version in (prefix.version, *prefix.earlier) if version is not None]
    matches = [version.last_matched for version in known if version.last_matched is not None]
    matches += [at for version in known if (at := _matched(version, holders)) is not None]
    visible = prefix.namespace in snapshot.routed or any(
        each.engine is not None and HARD_PINS in each.engine.capabilities for each in holders
    )
    return Evidence(max(matches, default=None), visible)


def _matched(version: Version, holders: Sequence[Candidate]) -> datetime | None:
    states = (each.reported.get(version.id) for each in holders)
    hits = [state.last_hit for state in states if state is not None and state.last_hit]
    return datetime.fromtimestamp(max(hits), UTC) if hits else None


def _wakes(
    choices: Sequence[_Choice], demands: Mapping[str, Demand], snapshot: Snapshot, now: datetime
) -> Iterator[datetime]:
    yield from (each.wake_at for each in demands.values() if each.wake_at is not None)
    for choice in choices:
        for version in choice.prefix.earlier if choice.chosen else ():
            end = kept_until(version, _matched(version, choice.chosen), snapshot.retention)
            if end is not None and end > now:
                yield end


def _candidates(snapshot: Snapshot) -> dict[str, list[Candidate]]:
    """Return the pods by namespace, sorted by name."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for pod in sorted(snapshot.pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        groups[pod.namespace].append(candidate(pod, snapshot.sidecars.get(pod.uid)))
    return groups


def _spread(
    prefixes: Sequence[Prefix],
    candidates: Mapping[str, Sequence[Candidate]],
    demands: Mapping[str, Demand],
    *,
    settling: bool,
) -> list[_Choice]:
    """Choose the pods of every resource: first all that stay, then what is missing.

    Both passes count into the same load, so that a new prefix sees the old ones' placements.
    """
    load: dict[str, int] = defaultdict(int)
    selections: dict[tuple[str, str], tuple[Candidate, ...]] = {}
    drafts = [
        _stay(prefix, _selected(prefix, candidates, selections), demands[prefix.uid])
        for prefix in prefixes
    ]
    for draft in drafts:
        for each in draft.chosen:
            load[each.pod.uid] += 1
    return [
        replace(draft, awaited=True)
        if settling and not all(each.connected for each in draft.selected)
        else _fill(draft, load)
        for draft in drafts
    ]


def _selected(
    prefix: Prefix,
    candidates: Mapping[str, Sequence[Candidate]],
    known: dict[tuple[str, str], tuple[Candidate, ...]],
) -> tuple[Candidate, ...]:
    """Return the pods that the resource selects; equal selectors share one search in ``known``."""
    spec = prefix.spec
    if spec is None or spec.suspend or prefix.deleting:
        return ()
    selector = spec.pods.selector
    key = (prefix.namespace, selector.model_dump_json())
    if key not in known:
        known[key] = tuple(
            each
            for each in candidates.get(prefix.namespace, ())
            if not each.pod.leaving and selector.matches(each.pod.labels)
        )
    return known[key]


def _stay(prefix: Prefix, selected: tuple[Candidate, ...], demand: Demand) -> _Choice:
    """Keep the holders that may stay, those that hold it warm before the others."""
    spec = prefix.spec
    if spec is None or spec.suspend or prefix.deleting:
        return _Choice(prefix, (), 0, (), demand=demand)
    if not demand.held:
        known = tuple(each for each in selected if prefix.uid in each.holds)
        return _Choice(prefix, selected, 0, known, demand=demand)
    staying = [
        each
        for each in selected
        if prefix.uid in each.holds
        and each.standing(spec.model) in (Standing.ELIGIBLE, Standing.UNHEALTHY)
    ]
    eligible = sum(each.standing(spec.model) is Standing.ELIGIBLE for each in selected)
    if spec.replicas == "All":
        recovering = [e for e in staying if e.standing(spec.model) is Standing.UNHEALTHY]
        return _Choice(prefix, selected, eligible + len(recovering), tuple(staying), demand=demand)
    # An engine that restarts keeps its place only as long as no healthy pod can take it.
    wanted = spec.pods_wanted(eligible)
    spare = max(0, wanted - eligible)
    healthy = [e for e in staying if e.standing(spec.model) is Standing.ELIGIBLE]
    healthy.sort(key=lambda e: (prefix.uid not in e.warms, _rank(prefix, e)))
    recovering = [e for e in staying if e.standing(spec.model) is Standing.UNHEALTHY]
    chosen = (*healthy[:wanted], *recovering[:spare])
    return _Choice(prefix, selected, wanted, chosen, demand=demand)


def _fill(draft: _Choice, load: dict[str, int]) -> _Choice:
    """Add eligible pods until the wanted number is reached."""
    prefix, spec = draft.prefix, draft.prefix.spec
    missing = draft.wanted - len(draft.chosen) if draft.demand.held else 0
    if spec is None or prefix.refusal is not None or missing <= 0:
        return draft
    taken = {each.pod.uid for each in draft.chosen}
    free = [
        each
        for each in draft.selected
        if each.pod.uid not in taken and each.standing(spec.model) is Standing.ELIGIBLE
    ]
    free.sort(key=lambda each: (load[each.pod.uid], _rank(prefix, each)))
    for each in free[:missing]:
        load[each.pod.uid] += 1
    return replace(draft, chosen=(*draft.chosen, *free[:missing]))


def _rank(prefix: Prefix, each: Candidate) -> bytes:
    """Rendezvous hash: each resource has its own order of the pods."""
    return hashlib.sha256(f"{prefix.uid}/{each.pod.uid}".encode()).digest()


def _versions_on(
    choice: _Choice, each: Candidate, snapshot: Snapshot, now: datetime
) -> list[Version]:
    """Return what the chosen pod should hold.

    The declared version, until that is warm on this pod the newest earlier one that is, and those
    that are still kept.
    """
    prefix = choice.prefix
    versions: list[Version] = []
    needed = True
    if prefix.version is not None and prefix.refusal is None:
        versions.append(prefix.version)
        needed = each.phase(prefix.version.id) is not Phase.WARM
    for version in prefix.earlier:
        if each.phase(version.id) is not Phase.WARM:
            continue
        matched = _matched(version, choice.chosen)
        if needed or retained(version, matched, now, snapshot.retention):
            versions.append(version)
        needed = False
    return versions


def _placement(choice: _Choice, version: Version) -> Placement:
    prefix = choice.prefix
    if prefix.spec is None:
        raise ValueError("a resource without a spec has no placements")
    return Placement(
        id=version.id,
        namespace=prefix.namespace,
        name=prefix.name,
        model=version.model,
        fingerprint=version.fingerprint,
        content_digest=version.content_digest,
        pinning=prefix.spec.pinning,
        salted=bool(version.salt_digest),
    )


def _holders(
    prefixes: Sequence[Prefix], candidates: Mapping[str, Sequence[Candidate]]
) -> dict[str, tuple[str, ...]]:
    """Return who holds what; a pod has no say in the resources of another namespace."""
    homes = {prefix.uid: prefix.namespace for prefix in prefixes}
    holders: dict[str, list[str]] = defaultdict(list)
    for namespace, group in candidates.items():
        for each in group:
            for uid in each.holds:
                if homes.get(uid, namespace) == namespace:
                    holders[uid].append(each.pod.name)
    return {uid: tuple(sorted(names)) for uid, names in holders.items()}


def _outlook(choice: _Choice, holders: Mapping[str, tuple[str, ...]]) -> Outlook:
    prefix, spec = choice.prefix, choice.prefix.spec
    current = prefix.version.id if prefix.version is not None and not prefix.refusal else ""
    short: Shortfall | None = None
    obstacles: tuple[Problem, ...] = ()
    if spec is not None and not spec.suspend:
        if choice.demand.held and (len(choice.chosen) < choice.wanted or not choice.chosen):
            short = shortfall(spec, prefix.namespace, choice.selected)
        if short is not None or spec.replicas == "All":
            chosen = {each.pod.uid for each in choice.chosen}
            others = (each for each in choice.selected if each.pod.uid not in chosen)
            found = (obstacle(each, spec.model) for each in others)
            obstacles = tuple(problem for problem in found if problem is not None)
    return Outlook(
        prefix=prefix,
        wanted=choice.wanted,
        holdings=tuple(
            Holding(each.pod.name, each.reported.get(current), each.engine)
            for each in sorted(choice.chosen, key=lambda each: each.pod.name)
        ),
        obstacles=obstacles,
        shortfall=short,
        holders=holders.get(prefix.uid, ()),
        demand=choice.demand,
    )
