"""Fleets with budgets, zones, priorities and shared heads, and what a plan makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from promptprefix.fleet import Limits, Override, Pod, Prefix, Sidecar, Size, Snapshot, Version
from promptprefix.placement import Plan, plan
from promptprefix.resource import Pinning, PromptPrefixSpec
from promptprefix.wire import (
    HEAD_LADDER,
    EngineState,
    OnIdle,
    Phase,
    Placement,
    PlacementState,
    SidecarState,
)

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MODEL = "m"
BLOCK = 16


def pod(name: str, *, zone: str = "", node: str = "", **fields: object) -> Pod:
    made = Pod(f"uid-{name}", "ml", name, {"app": "v"}, f"ip-{name}", True, False)
    return replace(made, zone=zone, node=node, **fields)  # type: ignore[arg-type]


def version(uid: str, text: str = "1", *, blocks: int = 0, **fields: object) -> Version:
    made = Version(
        f"{uid}-{text}", MODEL, f"f-{uid}-{text}", f"c-{uid}-{text}", estimated_tokens=blocks * 16
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def prefix(
    name: str,
    *,
    blocks: int = 0,
    replicas: int | str = 1,
    priority: int = 0,
    age: int = 0,
    spec: Mapping[str, object] | None = None,
    **fields: object,
) -> Prefix:
    """Return a prefix of ``blocks`` blocks, created ``age`` minutes ago."""
    body = {
        "model": MODEL,
        "pods": {"selector": {"matchLabels": {"app": "v"}}},
        "content": {"inline": {"systemInstructions": "x"}},
        "replicas": replicas,
        "priority": priority,
    }
    made = Prefix(
        uid=name,
        namespace="ml",
        name=name,
        generation=1,
        spec=PromptPrefixSpec.model_validate(body | dict(spec or {})),
        version=version(name, blocks=blocks),
        created=NOW - timedelta(minutes=age),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def state(id_: str, blocks: int, phase: Phase = Phase.WARM, head: str = "") -> PlacementState:
    """Return a report; versions share blocks as far as their ``head`` texts are the same.

    Each letter of it stands for one rung of the ladder.
    """
    rungs = [rung for rung in HEAD_LADDER if rung <= blocks]
    heads = [head[: index + 1] for index in range(min(len(head), len(rungs)))]
    if head:
        heads += [f"{id_}/{index}" for index in range(len(heads), len(rungs))]
    return PlacementState(
        id=id_,
        phase=phase,
        token_digest="a" * 64,
        tokens=blocks * BLOCK,
        pinned=Pinning.HARD if phase is Phase.WARM else Pinning.NONE,
        pinned_tokens=blocks * BLOCK if phase is Phase.WARM else 0,
        heads=tuple(heads),
    )


def sidecar(
    *held: PlacementState, budget: int = 0, told: Iterable[str] = (), **engine: object
) -> Sidecar:
    made = EngineState(
        healthy=True,
        address="",
        port=8000,
        models=(MODEL,),
        block_size=BLOCK,
        blocks_total=2 * budget,
        budget_blocks=budget,
    ).model_copy(update=engine)
    return Sidecar(SidecarState(engine=made, placements=held), frozenset(told))


def fleet(
    prefixes: Iterable[Prefix], pods: Iterable[Pod], budget: int = 0, **fields: object
) -> Snapshot:
    """Return a fleet of empty pods with equal budgets, where all sizes were as estimated."""
    members, declared = tuple(pods), tuple(prefixes)
    sidecars = {p.uid: sidecar(budget=budget) for p in members}
    made = Snapshot(declared, members, sidecars, sizes=as_estimated(declared))
    return replace(made, **fields)  # type: ignore[arg-type]


def versions_of(prefixes: Iterable[Prefix]) -> Iterator[Version]:
    for each in prefixes:
        yield from (found for found in (each.version, *each.earlier) if found is not None)


def as_estimated(prefixes: Iterable[Prefix]) -> dict[str, tuple[Size, ...]]:
    return {
        each.id: ((BLOCK, each.estimated_tokens, ()),)
        for each in versions_of(prefixes)
        if each.estimated_tokens
    }


def remembered(snapshot: Snapshot, sidecars: Mapping[str, Sidecar]) -> dict[str, tuple[Size, ...]]:
    """Return all sizes that were reported before or are reported now."""
    sizes = {id_: set(known) for id_, known in snapshot.sizes.items()}
    for each in sidecars.values():
        for report in each.state.placements:
            if report.tokens:
                size = (each.state.engine.block_size, report.tokens, report.heads)
                sizes.setdefault(report.id, set()).add(size)
    return {id_: tuple(sorted(known)) for id_, known in sizes.items()}


def pods(count: int) -> tuple[Pod, ...]:
    return tuple(pod(f"p{index}") for index in range(count))


def holders(made: Plan, id_: str) -> set[str]:
    """Return the names of the pods that are told to hold a version, pinned or not."""
    return {
        uid.removeprefix("uid-")
        for uid, held in made.desired.items()
        if any(each.id == id_ and each.release is None for each in held)
    }


def ready(made: Plan, uid: str) -> tuple[str, str, str]:
    found = next(each for each in made.statuses[uid].conditions if each.type == "Ready")
    return found.status, found.reason, found.message


def obeyed(snapshot: Snapshot, made: Plan, heads: Mapping[str, str] | None = None) -> Snapshot:
    """Return the snapshot in which every pod holds, warm, exactly what the plan says."""
    sizes = {each.id: each.estimated_tokens // BLOCK for each in versions_of(snapshot.prefixes)}
    known = {
        (uid, state.id): state
        for uid, each in snapshot.sidecars.items()
        for state in each.state.placements
    }

    def held(uid: str, placement: Placement) -> PlacementState:
        blocks, head = sizes.get(placement.id, 0), (heads or {}).get(placement.id, "")
        if placement.release is not None:
            report = state(placement.id, blocks, Phase.RELEASED, head)
            return report.model_copy(update={"released": placement.release})
        before = known.get((uid, placement.id))
        tokens = before.tokens if before is not None else 0
        return state(placement.id, tokens // BLOCK or blocks, Phase.WARM, head)

    sidecars = {
        uid: Sidecar(
            SidecarState(
                engine=each.state.engine,
                placements=tuple(held(uid, placement) for placement in made.desired[uid]),
            ),
            *told(made.desired[uid]),
        )
        for uid, each in snapshot.sidecars.items()
    }
    return replace(snapshot, sidecars=sidecars, sizes=remembered(snapshot, sidecars))


def told(placements: Iterable[Placement]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of a set, and of those in it that are to be released."""
    every = list(placements)
    resting = frozenset(each.id for each in every if each.release is not None)
    return frozenset(each.id for each in every), resting


def pinned(made: Plan, uid: str) -> list[Placement]:
    """Return what counts into the budget of a pod."""
    return [
        each
        for each in made.desired.get(uid, ())
        if each.release is None and each.pinning is not Pinning.NONE
    ]


def union(sized: Iterable[tuple[int, tuple[str, ...]]]) -> int:
    """Count the blocks of placements, those under equal digests once: block by block."""
    blocks: set[object] = set()
    for index, (size, heads) in enumerate(sized):
        shared = 0
        for rung, digest in zip(HEAD_LADDER, heads, strict=False):
            if rung > size:
                break
            blocks |= {(digest, position) for position in range(shared, rung)}
            shared = rung
        blocks |= {(index, position) for position in range(shared, size)}
    return len(blocks)


def size_on(snapshot: Snapshot, uid: str, version_id: str) -> tuple[int, tuple[str, ...]]:
    """Return blocks and heads of a version by the pod's report, else by others', else estimated."""
    own = {each.id: each for each in snapshot.sidecars[uid].state.placements}
    if (report := own.get(version_id)) is not None and report.tokens:
        return report.tokens // BLOCK, report.heads
    told = [
        (each.tokens, each.heads)
        for sidecar in snapshot.sidecars.values()
        for each in sidecar.state.placements
        if each.id == version_id and each.tokens
    ]
    told += [(tokens, heads) for _, tokens, heads in snapshot.sizes.get(version_id, ())]
    if told:
        tokens, heads = max(told)
        return tokens // BLOCK, heads
    for found in versions_of(snapshot.prefixes):
        if found.id == version_id:
            return -(-found.estimated_tokens // BLOCK), ()
    return 0, ()


def used(snapshot: Snapshot, made: Plan, uid: str) -> int:
    return union(size_on(snapshot, uid, each.id) for each in pinned(made, uid))


def budget(snapshot: Snapshot, uid: str) -> int:
    engine = snapshot.sidecars[uid].state.engine
    share = snapshot.limits.get("ml", Limits()).budget_share
    return int(engine.budget_blocks * share + 1e-9)


HEADS = ("", "a", "ab", "abc", "abcdef", "abx", "b")
"""Beginnings that some versions have in common."""


def _prefix(rng: Random, index: int) -> Prefix:
    name = f"x{index}"
    earlier = ()
    if rng.random() < 0.4:
        gone = rng.choice([NOW - timedelta(days=2), NOW - timedelta(minutes=1)])
        earlier = (version(name, "0", blocks=rng.randint(0, 12), superseded=gone),)
    return prefix(
        name,
        blocks=rng.randint(0, 12),
        replicas=rng.choice([1, 2, 3, 4, "All", "All", "50%", "100%"]),
        priority=rng.randint(-1, 2),
        age=rng.randint(0, 2),
        spec={"pinning": rng.choice(["Hard", "Hard", "Soft", "None"])},
        earlier=earlier,
        unpin=Override() if rng.random() < 0.15 else None,
    )


def fleet_of(seed: int, *, steady: bool = False) -> Snapshot:
    """Return a fleet in any state; ``steady``: all engines serve and all sizes are as estimated."""
    rng = Random(seed)  # noqa: S311 - no secret
    prefixes = tuple(_prefix(rng, index) for index in range(rng.randint(0, 6)))
    members = tuple(
        pod(
            f"p{index}",
            zone=rng.choice(["", "z0", "z1"]),
            node=rng.choice(["", "n0", "n1"]),
            leaving=not steady and rng.random() < 0.1,
            decodes=not steady and rng.random() < 0.1,
        )
        for index in range(rng.randint(0, 6))
    )
    heads = {f"x{index}-{text}": rng.choice(HEADS) for index in range(6) for text in "01"}
    sidecars = {
        each.uid: _sidecar(rng, prefixes, heads, steady=steady)
        for each in members
        if steady or rng.random() < 0.9
    }
    limits = {"ml": Limits(rng.choice([1.0, 0.5]), rng.choice([1_000, 1]))}
    known = {id_: size for id_, size in as_estimated(prefixes).items() if rng.random() < 0.5}
    return Snapshot(prefixes, members, sidecars, limits=limits, sizes=known)


def _sidecar(
    rng: Random, prefixes: Iterable[Prefix], heads: Mapping[str, str], *, steady: bool
) -> Sidecar:
    known = [v for each in prefixes for v in (each.version, *each.earlier) if v is not None]
    reports = []
    for each in known:
        if rng.random() < 0.4:
            continue
        phase = rng.choice([Phase.WARM, *Phase])
        blocks = each.estimated_tokens // BLOCK
        if not steady and rng.random() < 0.25:
            blocks = rng.randint(0, 12)
        report = state(each.id, blocks, phase, heads[each.id])
        if phase is Phase.RELEASED:
            report = report.model_copy(update={"released": OnIdle.KEEP})
        reports.append(report)
    made = sidecar(
        *reports,
        budget=rng.randint(1, 30),
        told=[each.id for each in known if rng.random() < 0.2],
        healthy=steady or rng.random() < 0.9,
        asleep=not steady and rng.random() < 0.1,
    )
    return replace(made, resting=frozenset(each for each in made.told if rng.random() < 0.3))


def mixed(rng: Random, one: Snapshot, other: Snapshot) -> Snapshot:
    """Return a snapshot of parts of two, so that much of the first is the same object."""
    prefixes = {each.uid: each for each in one.prefixes}
    prefixes |= {each.uid: each for each in other.prefixes if rng.random() < 0.5}
    members = {each.uid: each for each in one.pods}
    sidecars = dict(one.sidecars)
    for each in other.pods:
        if rng.random() < 0.3:
            members[each.uid] = each
        if rng.random() < 0.3:
            sidecars.pop(each.uid, None)
            if each.uid in other.sidecars and each.uid in members:
                sidecars[each.uid] = other.sidecars[each.uid]
    for uid in list(members):
        if rng.random() < 0.15:
            del members[uid]
            sidecars.pop(uid, None)
    for uid in list(prefixes):
        if rng.random() < 0.1:
            del prefixes[uid]
    return replace(
        one,
        prefixes=tuple(prefixes.values()),
        pods=tuple(members.values()),
        sidecars=sidecars,
        limits=rng.choice([one.limits, other.limits]),
        sizes=rng.choice([one.sizes, other.sizes]),
    )


def planned(snapshot: Snapshot) -> Plan:
    return plan(snapshot, NOW)
