"""Fleets that change by one thing at a time, as clusters do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from promptprefix.fleet import (
    Limits,
    Override,
    Pod,
    Prefix,
    Refusal,
    Retention,
    Sidecar,
    Snapshot,
)
from promptprefix.reasons import Reason
from promptprefix.resource import OnIdle
from promptprefix.wire import HARD_PINS, Phase, PlacementState

from .fleets import BLOCK, HEADS, NOW, obeyed, planned, pod, prefix, sidecar, state, version

Change = Callable[[Random, Snapshot], Snapshot]

_NAMESPACES = ("ml", "ml", "ml", "dev")


def begun(rng: Random) -> Snapshot:
    """Return a fleet in two namespaces, of which nothing is reported yet."""
    prefixes = tuple(_prefix(rng, f"x{index}") for index in range(rng.randint(1, 8)))
    members = tuple(_pod(rng, f"p{index}") for index in range(rng.randint(1, 7)))
    sidecars = {
        each.uid: sidecar(budget=rng.randint(4, 40)) for each in members if rng.random() < 0.9
    }
    return Snapshot(prefixes, members, sidecars, routed=frozenset({"ml"}))


def _pod(rng: Random, name: str) -> Pod:
    made = pod(name, zone=rng.choice(["", "z0", "z1"]), node=rng.choice(["", "n0", "n1"]))
    labels = {"app": rng.choice(["v", "v", "v", "w"])}
    return replace(made, namespace=rng.choice(_NAMESPACES), labels=labels)


def _prefix(rng: Random, name: str) -> Prefix:
    spec: dict[str, object] = {"pinning": rng.choice(["Hard", "Hard", "Hard", "Soft", "None"])}
    if rng.random() < 0.2:
        spec["idleTTL"] = "600s"
    if rng.random() < 0.3:
        spec["pods"] = {"selector": {"matchLabels": {"app": "w"}}}
    if rng.random() < 0.1:
        spec["model"] = "other"
    replicas = rng.choice([1, 1, 2, 3, "All", "All", "50%"])
    made = prefix(name, blocks=rng.randint(0, 12), replicas=replicas, age=rng.randint(0, 20))
    assert made.spec is not None
    changed = made.spec.model_copy(update={"priority": rng.randint(-1, 2)})
    made = replace(made, spec=type(changed).model_validate(changed.model_dump() | spec))
    return replace(made, namespace=rng.choice(_NAMESPACES))


def _versions(snapshot: Snapshot) -> Mapping[str, int]:
    """Return the sizes in blocks of all versions."""
    found = (v for each in snapshot.prefixes for v in (each.version, *each.earlier) if v)
    return {each.id: each.estimated_tokens // BLOCK for each in found}


def _told(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let a pod report something else of one version."""
    sizes = _versions(snapshot)
    if not snapshot.sidecars or not sizes:
        return snapshot
    uid, id_ = rng.choice(sorted(snapshot.sidecars)), rng.choice(sorted(sizes))
    before = snapshot.sidecars[uid]
    rest = tuple(each for each in before.state.placements if each.id != id_)
    if rng.random() < 0.8:
        rest = (*rest, _report(rng, id_, sizes[id_]))
    return _with(snapshot, uid, replace(before, state=_states(before, rest)))


def _report(rng: Random, id_: str, blocks: int) -> PlacementState:
    if rng.random() < 0.2:
        blocks = rng.randint(0, 14)
    made = state(id_, blocks, rng.choice([Phase.WARM, Phase.WARM, *Phase]), rng.choice(HEADS))
    hit = NOW.timestamp() + rng.randint(-2_000, 700) if rng.random() < 0.5 else None
    update = {"last_hit": hit, "counted": rng.random() < 0.5, "reason": rng.choice(["", "", "Why"])}
    if made.phase is Phase.RELEASED:
        update["released"] = OnIdle.KEEP
    return made.model_copy(update=update)


def _states(before: Sidecar, placements: tuple[PlacementState, ...]) -> object:
    return before.state.model_copy(update={"placements": placements})


def _with(snapshot: Snapshot, uid: str, made: Sidecar) -> Snapshot:
    return replace(snapshot, sidecars={**snapshot.sidecars, uid: made})


def _asked(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let a pod have been told something else."""
    if not snapshot.sidecars:
        return snapshot
    uid = rng.choice(sorted(snapshot.sidecars))
    ids = frozenset(each for each in _versions(snapshot) if rng.random() < 0.4)
    resting = frozenset(each for each in sorted(ids) if rng.random() < 0.3)
    return _with(snapshot, uid, replace(snapshot.sidecars[uid], told=ids, resting=resting))


def _engine(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let an engine be otherwise."""
    if not snapshot.sidecars:
        return snapshot
    uid = rng.choice(sorted(snapshot.sidecars))
    before = snapshot.sidecars[uid]
    update = rng.choice(
        [
            {"healthy": not before.state.engine.healthy},
            {"healthy": True, "asleep": False},
            {"asleep": not before.state.engine.asleep},
            {"budget_blocks": rng.randint(1, 40)},
            {"models": rng.choice([("m",), ("m", "other"), ("other",)])},
            {"block_size": rng.choice([16, 16, 32])},
            {"capabilities": rng.choice([(), (HARD_PINS,)]), "soft_reason": rng.choice(["", "?"])},
            {"port": rng.choice([0, 8000])},
        ]
    )
    engine = before.state.engine.model_copy(update=update)
    return _with(
        snapshot, uid, replace(before, state=before.state.model_copy(update={"engine": engine}))
    )


def _pods(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let a pod come, go, or be otherwise."""
    name = f"p{rng.randint(0, 8)}"
    found = {each.name: each for each in snapshot.pods}
    before, sidecars = found.get(name), dict(snapshot.sidecars)
    if before is None:
        found[name] = _pod(rng, name)
    elif rng.random() < 0.3:
        del found[name]
        sidecars.pop(before.uid, None)
    else:
        other: Mapping[str, object] = rng.choice(
            [
                {"labels": {"app": rng.choice(["v", "w", "u"])}},
                {"leaving": not before.leaving},
                {"decodes": not before.decodes},
                {"ready": not before.ready},
                {"address": rng.choice(["", "ip"])},
                {"zone": rng.choice(["", "z0", "z1"])},
                {"node": rng.choice(["", "n0", "n1"])},
            ]
        )
        found[name] = replace(before, **other)  # type: ignore[arg-type]
    return replace(snapshot, pods=tuple(found.values()), sidecars=sidecars)


def _connection(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let a sidecar connect, or the connection be lost."""
    if not snapshot.pods:
        return snapshot
    uid, sidecars = rng.choice(snapshot.pods).uid, dict(snapshot.sidecars)
    if sidecars.pop(uid, None) is None:
        sidecars[uid] = sidecar(budget=rng.randint(4, 40))
    return replace(snapshot, sidecars=sidecars)


def hushed(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot after a sidecar has fallen silent, or asks again; mostly none has."""
    if not snapshot.sidecars or rng.random() < 0.6:
        return snapshot
    uid = rng.choice(sorted(snapshot.sidecars))
    before = snapshot.sidecars[uid]
    return _with(snapshot, uid, replace(before, silent=not before.silent))


def _resources(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let a resource come, go, or be edited."""
    name = f"x{rng.randint(0, 9)}"
    found = {each.name: each for each in snapshot.prefixes}
    before = found.get(name)
    if before is None:
        found[name] = _prefix(rng, name)
    elif rng.random() < 0.15:
        del found[name]
    else:
        found[name] = _edited(rng, before)
    return replace(snapshot, prefixes=tuple(found.values()))


def _edited(rng: Random, before: Prefix) -> Prefix:
    assert before.spec is not None
    if rng.random() < 0.4:
        gone = rng.choice([NOW - timedelta(days=2), NOW - timedelta(minutes=9), NOW])
        past = (replace(before.version, superseded=gone),) if before.version else ()
        blocks, text = rng.randint(0, 12), str(rng.randint(2, 99))
        return replace(
            before,
            version=version(before.uid, text, blocks=blocks, readable=rng.random() < 0.9),
            earlier=(*past, *before.earlier)[:2],
        )
    if rng.random() < 0.5:
        spec = rng.choice(
            [
                {"priority": rng.randint(-1, 2)},
                {"replicas": rng.choice([1, 2, 3, "All", "50%"])},
                {"suspend": not before.spec.suspend},
                {"idleTTL": rng.choice([None, "600s", "700s"])},
            ]
        )
        return replace(before, spec=before.spec.model_copy(update=spec))
    refusal = Refusal(Reason.CONTENT_NOT_FOUND, "No text.", stalled=False)
    other: Mapping[str, object] = rng.choice(
        [
            {"unpin": None if before.unpin else Override(NOW + timedelta(minutes=5))},
            {"warm_now": None if before.warm_now else Override(NOW + timedelta(minutes=6))},
            {"refusal": None if before.refusal else refusal},
            {"deleting": not before.deleting},
            {"earlier": ()},
            {"generation": before.generation + 1},
            {},
        ]
    )
    return replace(before, **other)  # type: ignore[arg-type]


def _ground(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Let what holds for all be otherwise."""
    sizes = {
        id_: ((BLOCK, blocks * BLOCK, ()),)
        for id_, blocks in _versions(snapshot).items()
        if blocks and rng.random() < 0.5
    }
    spaces = frozenset(each for each in ("ml", "dev") if rng.random() < 0.5)
    limits = {"ml": Limits(rng.choice([1.0, 0.5]), rng.choice([1_000, 1]))}
    other: Mapping[str, object] = rng.choice(
        [
            {"sizes": sizes},
            {"sizes": dict(snapshot.sizes)},
            {"limits": limits},
            {"routed": spaces},
            {"silent": spaces},
            {"settling": not snapshot.settling},
            {"retention": Retention(idle=timedelta(seconds=rng.choice([60, 600])))},
        ]
    )
    return replace(snapshot, **other)  # type: ignore[arg-type]


def _carried_out(rng: Random, snapshot: Snapshot) -> Snapshot:
    heads = {id_: rng.choice(HEADS) for id_ in _versions(snapshot)}
    return obeyed(snapshot, planned(snapshot), heads)


CHANGES: tuple[Change, ...] = (
    _told, _told, _told, _asked, _engine, _pods, _connection, _resources, _resources, _ground,
    _carried_out,
)  # fmt: skip


def drifted(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot after one change, which may be none."""
    return rng.choice(CHANGES)(rng, snapshot)


def later(rng: Random, now: datetime, wake_at: datetime | None) -> datetime:
    """Return the time of the next plan: mostly the same, at times back, or when it was asked."""
    if rng.random() < 0.5:
        return now
    if wake_at is not None and rng.random() < 0.4:
        return wake_at
    return now + timedelta(seconds=rng.choice([1, 30, 300, 700, -400]))
