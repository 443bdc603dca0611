"""Status of prefixes that windows, idle time or a person on call let go."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from promptprefix.conditions import Outlook, judge, status_of
from promptprefix.demand import Demand
from promptprefix.fleet import Prefix, Refusal, Version
from promptprefix.holdings import Holding
from promptprefix.reasons import Reason
from promptprefix.resource import OnIdle, Pinning, Problem, PromptPrefixSpec
from promptprefix.wire import EngineState, Phase, PlacementState

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
EDGE = NOW + timedelta(hours=3, microseconds=7)
ENGINE = EngineState(healthy=True, address="a", port=1, block_size=16)
DOWN = ENGINE.model_copy(update={"healthy": False})
PREFIX = Prefix(
    uid="u",
    namespace="ml",
    name="a",
    generation=7,
    spec=PromptPrefixSpec.model_validate(
        {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "x"}},
        }
    ),
    version=Version("u-1", "m", "pp1:sha256:f", "c"),
)
OUTSIDE = Demand(False, Reason.OUTSIDE_WINDOWS, "Outside.", next_transition=EDGE)


def holding(
    pod: str,
    phase: Phase = Phase.RELEASED,
    released: OnIdle | None = OnIdle.KEEP,
    *,
    pinned_tokens: int = 0,
    reason: str = "",
    message: str = "",
) -> Holding:
    state = PlacementState(
        id="u-1",
        phase=phase,
        released=released,
        pinned=Pinning.HARD if pinned_tokens else Pinning.NONE,
        pinned_tokens=pinned_tokens,
        tokens=320,
        reason=reason,
        message=message,
    )
    return Holding(pod, state, ENGINE)


def cold(*holdings: Holding, release: OnIdle = OnIdle.KEEP, **changes: object) -> Outlook:
    outlook = Outlook(PREFIX, 0, holdings, demand=replace(OUTSIDE, release=release))
    return replace(outlook, **changes)  # type: ignore[arg-type] # any field


def conditions(outlook: Outlook) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status_of(outlook, NOW).conditions}


WARM = holding("p1", Phase.WARM, None, pinned_tokens=320)
CASES = [
    ("held nowhere", cold(), True, Reason.RELEASED),
    ("released everywhere", cold(holding("p0"), holding("p1")), True, Reason.RELEASED),
    ("still warm on one", cold(holding("p0"), WARM), False, Reason.RELEASING),
    (
        "given up, but pins are left",
        cold(holding("p0", pinned_tokens=16)),
        False,
        Reason.RELEASING,
    ),
    ("an earlier version", cold(holding("p0"), releasing=("p0",)), False, Reason.RELEASING),
    ("the engine is down", cold(WARM._replace(engine=DOWN)), True, Reason.RELEASED),
    ("it never was warm", cold(holding("p0", Phase.FAILED, None)), True, Reason.RELEASED),
    ("nothing of it there", cold(Holding("p0", None, ENGINE)), True, Reason.RELEASED),
    (
        "its text is missing",
        cold(prefix=replace(PREFIX, refusal=Refusal(Reason.CONTENT_NOT_FOUND, "x", False))),
        False,
        Reason.CONTENT_NOT_FOUND,
    ),
    (
        "its text can't have a head",
        cold(holding("p0", Phase.FAILED, None, reason="NoStaticHead")),
        False,
        Reason.NO_STATIC_HEAD,
    ),
]


@pytest.mark.parametrize(
    ("outlook", "ready", "reason"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_verdicts(outlook: Outlook, ready: bool, reason: Reason) -> None:
    verdict = judge(outlook)
    assert (verdict.ready, verdict.reason) == (ready, reason)
    found = conditions(outlook)
    assert found["Active"] == ("False", "OutsideWindows")
    assert found["Warm"] == ("False", reason)
    assert found["Reconciling"][0] == str(not ready and not verdict.stalled)


def test_correctly_cold_is_ready_and_says_when_it_is_held_again() -> None:
    status = status_of(cold(holding("p0")), NOW)
    ready, active, *_ = status.conditions
    assert (ready.status, ready.message) == ("True", "Released. Outside.")
    assert active.message == "Outside."
    assert status.nextTransitionTime == EDGE.replace(microsecond=0)
    assert (status.desiredPods, status.warm, status.tokens, status.blocks) == (0, "0/0", 320, 20)


@pytest.mark.parametrize(
    ("release", "told", "reason", "message"),
    [
        (OnIdle.OFFLOAD, "", Reason.NO_OFFLOAD_TIER, "no offload tier"),
        (OnIdle.EVICT, "", Reason.NOT_EVICTABLE, "engine plugin"),
        (OnIdle.EVICT, "AdapterChanged", Reason.ADAPTER_CHANGED, "engine plugin"),
    ],
)
def test_blocks_that_could_not_be_dropped(
    release: OnIdle, told: str, reason: Reason, message: str
) -> None:
    done = holding("p0", released=release)
    outlook = cold(done, holding("p1", reason=told), release=release)
    status = status_of(outlook, NOW)
    assert [(each.pod, each.reason) for each in status.problems] == [("p1", reason)]
    assert message in status.problems[0].message
    ready = status.conditions[0]
    assert (ready.status, ready.reason) == ("True", "Released")
    assert "p1" in ready.message
    assert "p0" not in ready.message
    assert message in ready.message
    said = replace(outlook, holdings=(holding("p1", reason=told, message="says why"),))
    assert status_of(said, NOW).problems[0].message == "says why"


def test_what_stands_in_the_way_of_warming_is_no_problem_of_a_cold_prefix() -> None:
    obstacle = Problem(pod="p9", reason="SidecarNotConnected", message="x")
    outlook = cold(WARM._replace(engine=DOWN), obstacles=(obstacle,))
    assert status_of(outlook, NOW).problems == []
    assert status_of(replace(outlook, demand=replace(OUTSIDE, held=True)), NOW).problems != []


def test_unreadable_windows_stall_whether_it_is_held_or_not() -> None:
    for held in (True, False):
        asked = replace(OUTSIDE, held=held, invalid="spec.windows[0].timeZone: no")
        outlook = replace(cold(WARM, wanted=1), demand=asked)
        assert conditions(outlook) == {
            "Ready": ("False", "InvalidWindow"),
            "Active": (str(held), "OutsideWindows"),
            "Warm": ("False", "InvalidWindow"),
            "Reconciling": ("False", "InvalidWindow"),
            "Stalled": ("True", "InvalidWindow"),
        }
        assert status_of(outlook, NOW).conditions[0].message == "spec.windows[0].timeZone: no"


def test_notes_stand_behind_the_reason() -> None:
    noted = replace(PREFIX, notes=("The annotation x is unreadable.",))
    active = status_of(cold(prefix=noted), NOW).conditions[1]
    assert active.message == "Outside. The annotation x is unreadable."


def test_the_open_window_is_named() -> None:
    asked = Demand(True, Reason.IN_WINDOW, "In the peak window office.", window="office")
    status = status_of(replace(cold(WARM, wanted=1), demand=asked), NOW)
    assert status.activeWindow == "office"
    assert status.nextTransitionTime is None
    assert [each.status for each in status.conditions] == ["True", "True", "True", "False", "False"]


def test_time_alone_changes_nothing() -> None:
    first = status_of(cold(holding("p0")), NOW)
    prefix = replace(PREFIX, conditions=tuple(first.conditions), versions=tuple(first.versions))
    again = cold(holding("p0"), prefix=prefix)
    assert status_of(again, NOW + timedelta(hours=2)) == first
