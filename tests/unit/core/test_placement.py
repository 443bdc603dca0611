"""The planner: who holds what, and what the router is told."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.fleet import Pod, Prefix, Refusal, Sidecar, Snapshot, Version, owner
from promptprefix.placement import Plan, plan
from promptprefix.reasons import Reason
from promptprefix.resource import Content, InlineContent, Pinning, Pods, PromptPrefixSpec
from promptprefix.selector import LabelSelector
from promptprefix.wire import EngineState, Phase, PlacementState, SidecarState

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MODEL = "m"


def pod(name: str, *, namespace: str = "ml", leaving: bool = False, ready: bool = True) -> Pod:
    return Pod(f"uid-{name}", namespace, name, {"app": "v"}, f"ip-{name}", ready, leaving)


def spec(
    replicas: int | str = "All", *, suspend: bool = False, pinning: Pinning = Pinning.HARD
) -> PromptPrefixSpec:
    return PromptPrefixSpec.model_validate(
        {"model": MODEL, "replicas": replicas, "suspend": suspend, "pinning": pinning}
        | {
            "pods": Pods(selector=LabelSelector(matchLabels={"app": "v"})),
            "content": Content(inline=InlineContent(systemInstructions="x")),
        }
    )


def version(uid: str, text: str = "1") -> Version:
    return Version(f"{uid}-{text}", MODEL, f"fingerprint-{text}", f"content-{text}")


def unused(uid: str, text: str = "1") -> Version:
    """Return a version that another has replaced and that no client sends any more."""
    return replace(version(uid, text), superseded=NOW - timedelta(days=2))


def prefix(name: str, wanted: PromptPrefixSpec | None = None, **fields: object) -> Prefix:
    made = Prefix(
        uid=name,
        namespace="ml",
        name=name,
        generation=1,
        spec=wanted or spec(),
        version=version(name),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def sidecar(
    *held: PlacementState,
    told: Iterable[str] = (),
    healthy: bool = True,
    models: tuple[str, ...] = (MODEL,),
) -> Sidecar:
    engine = EngineState(
        healthy=healthy, address="elsewhere", port=8000, models=models, block_size=16
    )
    return Sidecar(SidecarState(engine=engine, placements=held), frozenset(told))


def state(id_: str, phase: Phase = Phase.WARM, digest: str = "a" * 64) -> PlacementState:
    pinned = Pinning.HARD if phase is Phase.WARM else Pinning.NONE
    return PlacementState(id=id_, phase=phase, token_digest=digest, tokens=320, pinned=pinned)


def ids(made: Plan) -> dict[str, list[str]]:
    return {uid: [each.id for each in held] for uid, held in made.desired.items()}


def ready(made: Plan, uid: str) -> tuple[str, str]:
    """Return status and message of the condition Ready."""
    return next((c.status, c.message) for c in made.statuses[uid].conditions if c.type == "Ready")


def settled(snapshot: Snapshot, phase: Phase = Phase.WARM) -> Snapshot:
    """Return the snapshot in which every sidecar holds exactly what the plan wants."""
    made = plan(snapshot, NOW)
    sidecars = {
        uid: Sidecar(
            SidecarState(
                engine=each.state.engine,
                placements=tuple(state(id_, phase) for id_ in ids(made)[uid]),
            ),
            frozenset(ids(made)[uid]),
        )
        for uid, each in snapshot.sidecars.items()
    }
    return replace(snapshot, sidecars=sidecars)


def fleet(count: int, **fields: object) -> tuple[tuple[Pod, ...], dict[str, Sidecar]]:
    pods = tuple(pod(f"p{index}") for index in range(count))
    return pods, {each.uid: sidecar(**fields) for each in pods}  # type: ignore[arg-type]


def test_all_means_every_eligible_pod_and_no_other() -> None:
    pods = (
        pod("fit"),
        pod("leaving", leaving=True),
        pod("alone"),
        pod("ill"),
        pod("other"),
        pod("elsewhere", namespace="other"),
        replace(pod("unlabelled"), labels={}),
    )
    sidecars = {
        each.uid: sidecar(
            healthy=each.name != "ill", models=("n",) if each.name == "other" else ("m",)
        )
        for each in pods
        if each.name != "alone"
    }
    made = plan(Snapshot((prefix("a"),), pods, sidecars), NOW)
    assert {uid for uid, held in ids(made).items() if held} == {"uid-fit"}
    assert "uid-alone" not in made.desired, "nobody asks for its set"
    assert made.desired["uid-ill"] == ()


def test_an_unready_pod_holds_prefixes_because_it_waits_for_them() -> None:
    waiting = pod("p", ready=False)
    made = plan(Snapshot((prefix("a"),), (waiting,), {waiting.uid: sidecar()}), NOW)
    assert ids(made) == {waiting.uid: ["a-1"]}
    assert [each.ready for each in made.endpoints] == [False]


def test_holders_stay_when_a_pod_joins() -> None:
    pods, sidecars = fleet(3)
    before = settled(Snapshot((prefix("a", spec(2)),), pods, sidecars))
    joined = replace(
        before,
        pods=(*pods, pod("p9")),
        sidecars={**before.sidecars, "uid-p9": sidecar()},
    )
    assert ids(plan(joined, NOW)) == {**ids(plan(before, NOW)), "uid-p9": []}


def test_a_warm_holder_is_kept_before_one_that_was_only_told() -> None:
    pods = (pod("told"), pod("warm"))
    sidecars = {"uid-told": sidecar(told=["a-1"]), "uid-warm": sidecar(state("a-1"))}
    made = plan(Snapshot((prefix("a", spec(1)),), pods, sidecars), NOW)
    assert ids(made) == {"uid-told": [], "uid-warm": ["a-1"]}


def test_a_restarting_engine_keeps_its_place_unless_another_pod_can_take_it() -> None:
    pods, _ = fleet(2)
    ill = sidecar(state("a-1", Phase.PENDING), told=["a-1"], healthy=False)
    snapshot = Snapshot((prefix("a", spec(1)),), pods, {"uid-p0": ill, "uid-p1": sidecar()})
    assert ids(plan(snapshot, NOW)) == {"uid-p0": [], "uid-p1": ["a-1"]}
    alone = replace(snapshot, sidecars={"uid-p0": ill})
    assert ids(plan(alone, NOW)) == {"uid-p0": ["a-1"]}
    both = replace(snapshot, prefixes=(prefix("a"),))
    made = plan(both, NOW)
    assert ids(made) == {"uid-p0": ["a-1"], "uid-p1": ["a-1"]}
    assert made.statuses["a"].desiredPods == 2


def test_the_old_text_stays_on_a_pod_until_the_new_one_is_warm_there() -> None:
    pods, _ = fleet(2)
    edited = prefix("a", version=version("a", "2"), earlier=(unused("a"),))
    ready = sidecar(state("a-1"), state("a-2", digest="b" * 64))
    warming = sidecar(state("a-1"), state("a-2", Phase.WARMING))
    made = plan(Snapshot((edited,), pods, {"uid-p0": ready, "uid-p1": warming}), NOW)
    assert ids(made) == {"uid-p0": ["a-2"], "uid-p1": ["a-2", "a-1"]}
    assert [(each.fingerprint, each.token_digests) for each in made.prefixes] == [
        ("fingerprint-2", ("b" * 64,)),
        ("fingerprint-1", ("a" * 64,)),
    ]
    assert [each.warm for each in made.endpoints] == [("b" * 64,), ("a" * 64,)]
    assert made.kept == {"a-1", "a-2"}


def test_an_engine_that_is_down_is_routed_to_as_cold() -> None:
    a = prefix("a")
    held = {
        "uid-p0": sidecar(state(version("a").id)),
        "uid-p1": sidecar(state(version("a").id), healthy=False),
    }
    made = plan(Snapshot((a,), (pod("p0"), pod("p1")), held), NOW)
    assert [each.warm for each in made.endpoints] == [("a" * 64,), ()]


def test_a_refused_text_is_not_warmed_and_the_one_before_is_kept() -> None:
    pods, _ = fleet(2)
    refusal = Refusal(Reason.INVALID_TOOLS, "no", stalled=True)
    broken = prefix("a", version=None, refusal=refusal, earlier=(unused("a"),))
    sidecars = {"uid-p0": sidecar(state("a-1")), "uid-p1": sidecar()}
    made = plan(Snapshot((broken,), pods, sidecars), NOW)
    assert ids(made) == {"uid-p0": ["a-1"], "uid-p1": []}
    assert [each.fingerprint for each in made.prefixes] == ["fingerprint-1"]
    refused = replace(broken, version=version("a", "1"), earlier=())
    assert ids(plan(Snapshot((refused,), pods, sidecars), NOW))["uid-p0"] == []


def test_suspended_and_deleted_resources_are_released_and_not_routed() -> None:
    pods, _ = fleet(1)
    sidecars = {"uid-p0": sidecar(state("a-1"), state("b-1"), told=["b-1"])}
    gone = (prefix("a", spec(suspend=True)), prefix("b", deleting=True))
    made = plan(Snapshot(gone, pods, sidecars), NOW)
    assert ids(made) == {"uid-p0": []}
    assert made.prefixes == ()
    assert set(made.statuses) == {"a"}
    assert ready(made, "a") == ("False", "Suspended: being released on p0.")


def test_a_pod_holds_what_it_was_told_until_it_says_otherwise() -> None:
    pods, _ = fleet(1)
    told = {"uid-p0": sidecar(told=["a-1"])}
    freed = {"uid-p0": sidecar(state("a-1", Phase.RELEASED), state("a-2", Phase.FAILED))}
    suspended = (prefix("a", spec(suspend=True)),)
    assert ready(plan(Snapshot(suspended, pods, told), NOW), "a")[0] == "False"
    assert ready(plan(Snapshot(suspended, pods, freed), NOW), "a")[0] == "True"


def test_a_pod_has_no_say_in_another_namespace() -> None:
    liar = pod("liar", namespace="theirs")
    suspended = (prefix("a", spec(suspend=True)),)
    made = plan(Snapshot(suspended, (liar,), {liar.uid: sidecar(state("a-1"))}), NOW)
    assert ready(made, "a")[0] == "True"


def test_traffic_goes_only_where_the_api_server_says_and_only_for_what_was_asked() -> None:
    pods = (pod("p0"), replace(pod("p1"), address=""), pod("p2", leaving=True))
    claims = (state("a-1", digest="not a digest"), state("z-1", digest="c" * 64))
    sidecars = {each.uid: sidecar(*claims) for each in pods}
    made = plan(Snapshot((prefix("a"),), pods, sidecars), NOW)
    assert [(e.pod, e.address, e.ready, e.warm) for e in made.endpoints] == [
        ("p0", "ip-p0", True, ()),
        ("p2", "ip-p2", False, ()),
    ]
    assert [each.token_digests for each in made.prefixes] == [()]


def test_right_after_a_start_nothing_new_is_placed_or_said_before_all_have_reported() -> None:
    pods, _ = fleet(2)
    early = Snapshot((prefix("a", spec(1)),), pods, {"uid-p0": sidecar()}, settling=True)
    made = plan(early, NOW)
    assert (ids(made), made.statuses) == ({"uid-p0": []}, {})
    complete = replace(early, sidecars={"uid-p0": sidecar(), "uid-p1": sidecar(state("a-1"))})
    assert ids(plan(complete, NOW)) == {"uid-p0": [], "uid-p1": ["a-1"]}
    assert ids(plan(replace(early, settling=False), NOW)) == {"uid-p0": ["a-1"]}


phases = st.sampled_from(Phase)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    pods = tuple(
        pod(f"p{index}", leaving=draw(st.integers(0, 9)) == 0)
        for index in range(draw(st.integers(0, 6)))
    )
    prefixes = tuple(
        prefix(
            f"x{index}",
            spec(draw(st.one_of(st.just("All"), st.integers(1, 4))), suspend=draw(st.booleans())),
            version=version(f"x{index}", "2"),
            earlier=(unused(f"x{index}"),),
        )
        for index in range(draw(st.integers(0, 5)))
    )
    known = [f"x{index}-{text}" for index in range(5) for text in "12"]
    sidecars: Mapping[str, Sidecar] = {
        each.uid: sidecar(
            *(
                state(id_, draw(phases))
                for id_ in draw(st.lists(st.sampled_from(known), unique=True, max_size=4))
            ),
            told=draw(st.lists(st.sampled_from(known), max_size=2)),
            healthy=draw(st.integers(0, 4)) > 0,
            models=(MODEL,) if draw(st.integers(0, 4)) > 0 else ("n",),
        )
        for each in pods
        if draw(st.integers(0, 4)) > 0
    }
    return Snapshot(prefixes, pods, sidecars)


def eligible(snapshot: Snapshot) -> set[str]:
    return {
        each.uid
        for each in snapshot.pods
        if not each.leaving
        and (found := snapshot.sidecars.get(each.uid)) is not None
        and found.state.engine.healthy
        and MODEL in found.state.engine.models
    }


STAND_INS = 2
"""On so many pods more it is tried, where it could not be warmed."""


def holders(made: Plan, uid: str, text: str = "2") -> set[str]:
    return {pod for pod, held in ids(made).items() if f"{uid}-{text}" in held}


def failed(snapshot: Snapshot, pod: str, uid: str) -> bool:
    """Whether a pod could not warm the declared text."""
    placements = snapshot.sidecars[pod].state.placements
    return any(each.id == f"{uid}-2" and each.phase is Phase.FAILED for each in placements)


@given(snapshots(), st.randoms(use_true_random=False))
def test_plans_do_not_depend_on_order(snapshot: Snapshot, rng: random.Random) -> None:
    pods, prefixes = list(snapshot.pods), list(snapshot.prefixes)
    rng.shuffle(pods)
    rng.shuffle(prefixes)
    shuffled = replace(snapshot, pods=tuple(pods), prefixes=tuple(prefixes))
    assert plan(shuffled, NOW) == plan(snapshot, NOW)


@given(snapshots())
def test_the_wanted_number_is_met_by_eligible_pods_alone(snapshot: Snapshot) -> None:
    made, fit = plan(snapshot, NOW), eligible(snapshot)
    for each in snapshot.prefixes:
        assert each.spec is not None
        chosen = holders(made, each.uid)
        if each.spec.suspend:
            assert chosen == set()
        elif each.spec.replicas == "All":
            assert fit <= chosen
        else:
            tried = min(STAND_INS, sum(failed(snapshot, pod, each.uid) for pod in chosen))
            wanted = min(each.spec.replicas, len(fit))
            assert wanted <= len(chosen & fit) <= wanted + tried
            assert len(chosen) <= each.spec.replicas + tried
        for extra in chosen - fit:
            assert not snapshot.sidecars[extra].state.engine.healthy


@given(snapshots())
def test_a_plan_that_was_carried_out_is_the_next_plan(snapshot: Snapshot) -> None:
    done = settled(settled(snapshot))
    again = plan(done, NOW)
    assert ids(again) == ids(plan(settled(done), NOW))
    for uid, held in ids(again).items():
        assert len(set(map(owner, held))) == len(held), uid


@given(snapshots())
def test_no_text_is_dropped_before_the_new_one_is_warm(snapshot: Snapshot) -> None:
    made = plan(snapshot, NOW)
    for each in snapshot.prefixes:
        for uid in holders(made, each.uid):
            reported = {s.id: s.phase for s in snapshot.sidecars[uid].state.placements}
            if reported.get(f"{each.uid}-1") is Phase.WARM:
                new_is_warm = reported.get(f"{each.uid}-2") is Phase.WARM
                assert (f"{each.uid}-1" in ids(made)[uid]) != new_is_warm


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 3))
def test_new_prefixes_spread_evenly(pods: int, prefixes: int, replicas: int) -> None:
    members, sidecars = fleet(pods)
    wanted = tuple(prefix(f"x{index}", spec(replicas)) for index in range(prefixes))
    made = plan(Snapshot(wanted, members, sidecars), NOW)
    loads = [len(held) for held in made.desired.values()]
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == prefixes * min(replicas, pods)
