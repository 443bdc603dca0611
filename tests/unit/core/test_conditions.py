"""Status: verdicts, conditions, counts and problems."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from promptprefix.conditions import Outlook, Shortfall, judge, status_of
from promptprefix.demand import Evidence, demand
from promptprefix.fleet import Prefix, Refusal, Version
from promptprefix.holdings import Holding
from promptprefix.reasons import Reason
from promptprefix.resource import LintFinding, Pinning, Problem, PromptPrefixSpec
from promptprefix.windows import Calendar
from promptprefix.wire import EngineState, Phase, PlacementState

NOW = datetime(2026, 11, 29, 12, 0, 0, 500, tzinfo=UTC)
ENGINE = EngineState(healthy=True, address="a", port=1, block_size=16, soft_reason="no plugin")


def spec(**fields: object) -> PromptPrefixSpec:
    return PromptPrefixSpec.model_validate(
        {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "x"}},
        }
        | fields
    )


PREFIX = Prefix(
    uid="u",
    namespace="ml",
    name="a",
    generation=7,
    spec=spec(),
    version=Version("u-1", "m", "pp1:sha256:f", "c"),
)


def holding(
    pod: str, phase: Phase = Phase.WARM, pinned: Pinning = Pinning.HARD, **fields: str
) -> Holding:
    state = PlacementState(id="u-1", phase=phase, pinned=pinned, tokens=320, **fields)
    return Holding(pod, state, ENGINE)


def outlook(*holdings: Holding, prefix: Prefix = PREFIX, wanted: int | None = None) -> Outlook:
    asked = demand(prefix, Evidence(), NOW, Calendar())
    return Outlook(prefix, len(holdings) if wanted is None else wanted, holdings, demand=asked)


SHORT = Shortfall(Reason.INSUFFICIENT_PODS, "one more")
REFUSAL = Refusal(Reason.INVALID_TOOLS, "tools", stalled=True)
MISSING = Refusal(Reason.CONTENT_NOT_FOUND, "missing", stalled=False)
SUSPENDED = replace(PREFIX, spec=spec(suspend=True))
WARM, COLD = holding("p0"), Holding("p1", None, ENGINE)

CASES = [
    ("warm", outlook(WARM), True, Reason.WARM, False),
    ("cold", outlook(WARM, COLD), False, Reason.WARMING, False),
    ("none reported", outlook(wanted=1), False, Reason.RECONCILING, False),
    ("short", replace(outlook(WARM, wanted=2), shortfall=SHORT), False, SHORT.reason, False),
    (
        "refused",
        outlook(WARM, prefix=replace(PREFIX, refusal=REFUSAL)),
        False,
        REFUSAL.reason,
        True,
    ),
    ("missing", outlook(prefix=replace(PREFIX, refusal=MISSING)), False, MISSING.reason, False),
    (
        "unreadable spec",
        outlook(prefix=replace(PREFIX, spec=None, refusal=REFUSAL)),
        False,
        Reason.INVALID_SPEC,
        True,
    ),
    ("suspended", outlook(prefix=SUSPENDED), True, Reason.SUSPENDED, False),
    (
        "suspended, text missing",
        outlook(prefix=replace(SUSPENDED, refusal=MISSING)),
        True,
        Reason.SUSPENDED,
        False,
    ),
    (
        "being released",
        replace(outlook(prefix=SUSPENDED), holders=("p0",)),
        False,
        Reason.SUSPENDED,
        False,
    ),
    ("soft", outlook(holding("p0", pinned=Pinning.SOFT)), True, Reason.SOFT_PINNED, False),
    (
        "soft as wanted",
        outlook(
            holding("p0", pinned=Pinning.SOFT), prefix=replace(PREFIX, spec=spec(pinning="Soft"))
        ),
        True,
        Reason.WARM,
        False,
    ),
    (
        "no static head",
        outlook(holding("p0", Phase.FAILED, reason="NoStaticHead", message="mixes"), COLD),
        False,
        Reason.NO_STATIC_HEAD,
        True,
    ),
    (
        "budget",
        outlook(WARM, holding("p1", Phase.FAILED, reason="BudgetExceeded")),
        False,
        Reason.BUDGET_EXCEEDED,
        False,
    ),
    (
        "a word that is no reason",
        outlook(holding("p1", Phase.FAILED, reason="what now?")),
        False,
        Reason.WARM_FAILED,
        False,
    ),
]


@pytest.mark.parametrize(
    ("case", "ready", "reason", "stalled"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_verdicts_and_conditions(case: Outlook, ready: bool, reason: Reason, stalled: bool) -> None:
    verdict = judge(case)
    assert (verdict.ready, verdict.reason, verdict.stalled) == (ready, reason, stalled)
    assert verdict.message
    status = status_of(case, NOW)
    found = {each.type: (each.status, each.reason) for each in status.conditions}
    assert list(found) == ["Ready", "Active", "Warm", "Reconciling", "Stalled"]
    assert found["Ready"] == (str(ready), reason)
    assert found["Stalled"][0] == str(stalled)
    # kstatus: what is neither current nor failed is in progress, and says so.
    assert found["Reconciling"][0] == str(not ready and not stalled)
    spec_ = case.prefix.spec
    active = spec_ is not None and not spec_.suspend
    assert found["Active"][0] == str(active)
    assert found["Warm"][0] == str(ready and active)
    assert {each.observedGeneration for each in status.conditions} == {7}
    assert status.observedGeneration == 7


def test_counts_and_sizes() -> None:
    status = status_of(outlook(WARM, holding("p1", pinned=Pinning.SOFT), COLD), NOW)
    assert (status.desiredPods, status.warmPods, status.pinnedPods) == (3, 2, 1)
    assert (status.warm, status.tokens, status.blocks) == ("2/3", 320, 20)
    assert status.fingerprint == "pp1:sha256:f"


def test_transition_times_move_only_on_a_flip() -> None:
    first = status_of(outlook(COLD), NOW)
    later = NOW + timedelta(minutes=1)
    prefix = replace(PREFIX, conditions=tuple(first.conditions))
    failed = holding("p1", Phase.FAILED, reason="WarmFailed")
    same = status_of(outlook(failed, prefix=prefix), later)
    assert {each.lastTransitionTime for each in same.conditions} == {NOW.replace(microsecond=0)}
    warm = status_of(outlook(WARM, prefix=prefix), later)
    moved = {each.type for each in warm.conditions if each.lastTransitionTime > NOW}
    assert moved == {"Ready", "Warm", "Reconciling"}


def test_equal_outlooks_give_equal_statuses() -> None:
    first = status_of(outlook(WARM), NOW)
    prefix = replace(PREFIX, conditions=tuple(first.conditions), versions=tuple(first.versions))
    assert status_of(outlook(WARM, prefix=prefix), NOW + timedelta(hours=1)) == first


def test_problems_are_few_sorted_and_carry_only_words() -> None:
    ill = [
        holding(f"p{index:02}", Phase.FAILED, reason="no word!", message="m" * 5_000)
        for index in range(20)
    ]
    obstacle = Problem(pod="a", reason="SidecarNotConnected", message="x")
    status = status_of(replace(outlook(*reversed(ill)), obstacles=(obstacle,)), NOW)
    assert [each.pod for each in status.problems] == ["a", *(f"p{index:02}" for index in range(9))]
    assert {each.reason for each in status.problems[1:]} == {"WarmFailed"}
    assert max(len(each.message) for each in status.problems) == 1_024


def test_a_soft_pin_says_why() -> None:
    soft = holding("p1", pinned=Pinning.SOFT, reason="BudgetExceeded", message="budget full")
    status = status_of(outlook(WARM, soft, holding("p2", pinned=Pinning.SOFT)), NOW)
    assert [(each.pod, each.reason, each.message) for each in status.problems] == [
        ("p1", "BudgetExceeded", "budget full"),
        ("p2", "SoftPinned", "no plugin"),
    ]
    ready = status.conditions[0]
    assert ready.reason == "SoftPinned"
    assert "p1, p2" in ready.message
    assert "budget full" in ready.message


def test_findings_are_reported() -> None:
    finding = LintFinding(
        rule="r", severity="Warning", path="systemInstructions", offset=0, message=""
    )
    status = status_of(outlook(WARM, prefix=replace(PREFIX, lint=(finding,) * 30)), NOW)
    assert len(status.lint) == 20


def test_an_engine_that_is_down_holds_nothing() -> None:
    down = holding("p1")._replace(engine=ENGINE.model_copy(update={"healthy": False}))
    status = status_of(outlook(WARM, down), NOW)
    ready = next(each for each in status.conditions if each.type == "Ready")
    assert (ready.status, ready.reason) == ("False", Reason.ENGINE_NOT_HEALTHY)
    assert "p1" in ready.message
    assert (status.warmPods, status.pinnedPods, status.warm) == (1, 1, "1/2")
    assert [(each.pod, each.reason) for each in status.problems] == [
        ("p1", Reason.ENGINE_NOT_HEALTHY)
    ]
