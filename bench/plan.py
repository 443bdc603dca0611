"""How long a plan takes, statuses and routes included: ``python bench/plan.py``. One core.

Each fleet is planned from scratch, carried out, and planned again after one change. Times are the
median of several runs, and the worst, in milliseconds: of the clock, and of the processor (what is
between them went to others on the same machine).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from promptprefix.fleet import Pod, Prefix, Sidecar, Snapshot, Version
from promptprefix.placement import Plan, Planner
from promptprefix.resource import OnIdle, Pinning, PromptPrefixSpec
from promptprefix.wire import (
    HARD_PINS,
    HEAD_LADDER,
    EngineState,
    Phase,
    PlacementState,
    SidecarState,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
BLOCK = 16
TOKENS = 2_592
PREAMBLE = 12
"""Rungs that all texts of a team have in common."""


@dataclass(frozen=True)
class Fleet:
    """So many prefixes and pods; ``budget`` in blocks of each pod."""

    name: str
    prefixes: int
    pods: int
    replicas: int | str
    budget: int


FLEETS = (
    Fleet("3 replicas, room for all", 1_000, 1_000, 3, 4_000),
    Fleet("3 replicas, room for two thirds", 1_000, 1_000, 3, 324),
    Fleet("All", 50, 1_000, "All", 10_000),
    Fleet("All, room for half", 50, 1_000, "All", 4_050),
)


def pod(number: int) -> Pod:
    """Return one pod; five share a node, a third of the nodes a zone."""
    node = number // 5
    return Pod(
        f"pod-{number:08d}-0000-0000",
        "ml",
        f"vllm-{number}",
        {"app": "vllm", "pod-template-hash": "7d9f"},
        f"10.0.{number // 250}.{number % 250 + 1}",
        True,
        False,
        node=f"node-{node}",
        zone=f"zone-{node % 3}",
    )


def prefix(number: int, replicas: int | str, text: str = "one") -> Prefix:
    """Return one resource; they come at five priorities."""
    uid = f"{number:08d}-1111-2222-3333-444444444444"
    spec = PromptPrefixSpec.model_validate(
        {
            "model": MODEL,
            "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
            "content": {"inline": {"systemInstructions": text}},
            "replicas": replicas,
            "priority": number % 5,
        }
    )
    digest = hashlib.sha256(f"{number}/{text}".encode()).hexdigest()
    version = Version(
        f"{uid}-{digest[:12]}", MODEL, f"pp1:sha256:{digest}", digest, estimated_tokens=TOKENS
    )
    return Prefix(uid, "ml", f"prompt-{number}", 1, spec, version, created=NOW - timedelta(days=1))


def engine(budget: int) -> EngineState:
    """Return a healthy engine."""
    return EngineState(
        healthy=True, address="", port=8000, models=(MODEL,), epoch="e", block_size=BLOCK,
        blocks_total=2 * budget, budget_blocks=budget, capabilities=(HARD_PINS,),
    )  # fmt: skip


def warm(id_: str, team: int) -> PlacementState:
    """Return the report of a version that is warm; a team's texts begin alike."""
    rungs = [rung for rung in HEAD_LADDER if rung <= TOKENS // BLOCK]
    heads = tuple(
        hashlib.sha256(f"{team if rung <= PREAMBLE else id_}/{rung}".encode()).hexdigest()[:12]
        for rung in rungs
    )
    return PlacementState(
        id=id_, phase=Phase.WARM, token_digest=hashlib.sha256(id_.encode()).hexdigest(),
        tokens=TOKENS, resident_tokens=TOKENS, pinned_tokens=TOKENS, pinned=Pinning.HARD,
        heads=heads, last_hit=NOW.timestamp() - 60,
    )  # fmt: skip


def let_go(held: PlacementState) -> PlacementState:
    """Return the report of a version that is measured, but not held."""
    changes = {"phase": Phase.RELEASED, "pinned": Pinning.NONE, "pinned_tokens": 0}
    return held.model_copy(update=changes | {"resident_tokens": 0, "released": OnIdle.KEEP})


def begun(fleet: Fleet) -> Snapshot:
    """Return the fleet before anything is placed."""
    pods = tuple(pod(number) for number in range(fleet.pods))
    sidecars = {
        each.uid: Sidecar(SidecarState(engine=engine(fleet.budget), ready=True)) for each in pods
    }
    prefixes = tuple(prefix(number, fleet.replicas) for number in range(fleet.prefixes))
    return Snapshot(prefixes, pods, sidecars, routed=frozenset({"ml"}))


def carried_out(snapshot: Snapshot, made: Plan) -> Snapshot:
    """Return the fleet in which every pod holds what the plan says."""
    teams = {each.version.id: int(each.uid[:8]) % 20 for each in snapshot.prefixes if each.version}
    states = {id_: warm(id_, team) for id_, team in teams.items()}
    sidecars = {
        uid: Sidecar(
            SidecarState(
                engine=each.state.engine,
                ready=True,
                placements=tuple(
                    states[held.id] if held.release is None else let_go(states[held.id])
                    for held in made.desired[uid]
                ),
            ),
            frozenset(held.id for held in made.desired[uid]),
            frozenset(held.id for held in made.desired[uid] if held.release is not None),
        )
        for uid, each in snapshot.sidecars.items()
    }
    return replace(snapshot, sidecars=sidecars)


def written(snapshot: Snapshot, made: Plan) -> Snapshot:
    """Return the snapshot whose resources bear the statuses of the plan."""
    prefixes = tuple(
        replace(
            each,
            conditions=tuple(made.statuses[each.uid].conditions),
            versions=tuple(made.statuses[each.uid].versions),
        )
        for each in snapshot.prefixes
    )
    return replace(snapshot, prefixes=prefixes)


def reported(snapshot: Snapshot, turn: int) -> Snapshot:
    """Return the snapshot in which one pod tells of newer matches of all that it holds."""
    uid = snapshot.pods[(turn * 37) % len(snapshot.pods)].uid
    before = snapshot.sidecars[uid]
    placements = tuple(
        each.model_copy(update={"last_hit": NOW.timestamp() - 50 + turn})
        for each in before.state.placements
    )
    state = before.state.model_copy(update={"placements": placements})
    return replace(snapshot, sidecars={**snapshot.sidecars, uid: replace(before, state=state)})


def edited(snapshot: Snapshot, turn: int) -> Snapshot:
    """Return the snapshot in which one resource has another text."""
    index = (turn * 41) % len(snapshot.prefixes)
    before = snapshot.prefixes[index]
    replicas = before.spec.replicas if before.spec else 1
    made = prefix(index, replicas, f"edit {turn}")
    earlier = (replace(before.version, superseded=NOW),) if before.version is not None else ()
    after = replace(
        made, earlier=earlier, conditions=before.conditions, versions=before.versions, generation=2
    )
    prefixes = (*snapshot.prefixes[:index], after, *snapshot.prefixes[index + 1 :])
    return replace(snapshot, prefixes=prefixes)


def bereft(snapshot: Snapshot, turn: int) -> Snapshot:
    """Return the snapshot without one pod."""
    gone = (turn * 43) % len(snapshot.pods)
    pods = (*snapshot.pods[:gone], *snapshot.pods[gone + 1 :])
    uid = snapshot.pods[gone].uid
    return replace(
        snapshot, pods=pods, sidecars={k: v for k, v in snapshot.sidecars.items() if k != uid}
    )


CHANGES: Sequence[tuple[str, Callable[[Snapshot, int], Snapshot]]] = (
    ("nothing new", lambda snapshot, _: snapshot),
    ("report of one pod", reported),
    ("one edited prefix", edited),
    ("one pod gone", bereft),
)


Times = tuple[float, float]
"""Milliseconds by the clock, and of the processor."""


def timed(planner: Planner, snapshot: Snapshot) -> tuple[Times, Plan]:
    """Return how long a plan took, with what the garbage collector does after it, and the plan."""
    began, ran = time.perf_counter(), time.process_time()
    made = planner.plan(snapshot, NOW)
    gc.collect(0)  # the collector has waited while the plan was made
    return ((time.perf_counter() - began) * 1e3, (time.process_time() - ran) * 1e3), made


def told(name: str, times: Sequence[Times]) -> None:
    """Print a line."""
    clock, processor = zip(*times, strict=True)
    sys.stdout.write(
        f"  {name:24} median {statistics.median(clock):7.1f}  worst {max(clock):7.1f}"
        f"   processor: median {statistics.median(processor):7.1f}  worst {max(processor):7.1f}\n"
    )
    sys.stdout.flush()


def measure(fleet: Fleet, runs: int) -> None:
    """Print the times of one fleet."""
    sys.stdout.write(f"{fleet.prefixes} prefixes x {fleet.pods} pods, {fleet.name}\n")
    empty = begun(fleet)
    scratch = []
    for _ in range(3):
        gc.collect()
        took, made = timed(Planner(), empty)
        scratch.append(took)
    told("from scratch, all cold", scratch)
    held = carried_out(empty, made)
    held = written(held, Planner().plan(held, NOW))
    scratch = []
    for _ in range(3):
        gc.collect()
        took, made = timed(Planner(), held)
        scratch.append(took)
    told("from scratch, all warm", scratch)
    reasons = [each.reason for status in made.statuses.values() for each in status.conditions]
    for name, change in CHANGES:
        planner = Planner()
        snapshot = held
        planner.plan(snapshot, NOW)
        times = []
        for turn in range(runs):
            snapshot = change(snapshot, turn)
            gc.collect()
            took, after = timed(planner, snapshot)
            times.append(took)
        if after != Planner().plan(snapshot, NOW):
            sys.stdout.write("  differs from a plan from scratch\n")
        told(name, times)
    short = sum(reason == "BudgetExceeded" for reason in reasons) // 3
    sys.stdout.write(f"  prefixes without room: {short}\n")


def main() -> None:
    """Measure all fleets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="changes of each kind")
    arguments = parser.parse_args()
    for fleet in FLEETS:
        measure(fleet, arguments.runs)


if __name__ == "__main__":
    main()
