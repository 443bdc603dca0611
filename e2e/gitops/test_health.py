"""What GitOps tools make of our status: kstatus (Flux) and the health script of Argo CD."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.gitops.objects import NOW, OLD, held, planned, prefix, snapshot, spec, stored
from e2e.tools.gitops import GitOpsStatus
from promptprefix.conditions import Outlook, Shortfall, status_of
from promptprefix.fleet import Prefix, Refusal
from promptprefix.holdings import Holding
from promptprefix.placement import plan
from promptprefix.reasons import ConditionType, Reason
from promptprefix.resource import Condition, OnIdle, Pinning
from promptprefix.wire import EngineState, Phase

pytestmark = pytest.mark.timeout(1800)  # the first run builds the tools

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "gitops.md"
ARGO = ROOT / "examples" / "gitops" / "argocd"
SCRIPT = ARGO / "health.lua"

NOT_FOUND = Refusal(Reason.CONTENT_NOT_FOUND, "ConfigMap a does not exist.", stalled=False)
LINT = Refusal(Reason.LINT_FAILED, "The linter found dynamic-timestamp.", stalled=True)
SOFT = held(pinned=Pinning.SOFT)
NO_HEAD = held(phase=Phase.FAILED, reason=Reason.NO_STATIC_HEAD)
RELEASED = held(phase=Phase.RELEASED, pinned=Pinning.NONE, released=OnIdle.KEEP)
OFFICE = {"name": "office", "schedule": "0 8 * * MON-FRI", "duration": "10h"}
AWAY = spec(windows=[OFFICE])  # it is a Sunday
LOST = spec(windows=[OFFICE | {"timeZone": "Europe/Atlantis"}])
EDITED = planned(prefix(), held())
EDITED["metadata"]["generation"] += 1
PRUNED = prefix(NOT_FOUND, version=None, earlier=(OLD,))

Case = tuple[dict[str, Any], str, str]
CASES: dict[str, Case] = {
    "new": (stored(prefix(), None), "InProgress", "Progressing"),
    "no report yet": (planned(prefix(), None), "InProgress", "Progressing"),
    "warming": (planned(prefix(), held(phase=Phase.WARMING)), "InProgress", "Progressing"),
    "half warm": (planned(prefix(), held(), None), "InProgress", "Progressing"),
    "warm": (planned(prefix(), held(), held()), "Current", "Healthy"),
    "soft pinned": (planned(prefix(), SOFT), "Current", "Healthy"),
    "no pods": (planned(prefix()), "InProgress", "Progressing"),
    "too few pods": (planned(prefix(spec=spec(replicas=2)), held()), "InProgress", "Progressing"),
    "text missing": (planned(prefix(NOT_FOUND, version=None)), "InProgress", "Progressing"),
    "text pruned early": (planned(PRUNED, held(OLD)), "InProgress", "Progressing"),
    "warm-up failed": (planned(prefix(), held(phase=Phase.FAILED)), "InProgress", "Progressing"),
    "no static head": (planned(prefix(), NO_HEAD), "Failed", "Degraded"),
    "lint enforced": (planned(prefix(LINT), None), "Failed", "Degraded"),
    "being suspended": (
        planned(prefix(spec=spec(suspend=True)), held()), "InProgress", "Progressing",
    ),
    "suspended": (planned(prefix(spec=spec(suspend=True)), None), "Current", "Healthy"),
    "being released": (planned(prefix(spec=AWAY), held()), "InProgress", "Progressing"),
    "outside its windows": (planned(prefix(spec=AWAY), RELEASED), "Current", "Healthy"),
    "window unreadable": (planned(prefix(spec=LOST), None), "Failed", "Degraded"),
    "edited": (EDITED, "InProgress", "Progressing"),
    "being deleted": (planned(prefix(deleting=True), held()), "Terminating", "Progressing"),
}  # fmt: skip


def test_every_state_reads_as_meant(tools: GitOpsStatus) -> None:
    objects = [body for body, _, _ in CASES.values()]
    found = {
        name: (flux.status, argo.status)
        for name, flux, argo in zip(
            CASES, tools.kstatus(objects), tools.argo(objects, SCRIPT), strict=True
        )
    }
    assert found == {name: (flux, argo) for name, (_, flux, argo) in CASES.items()}


def test_messages_reach_the_people(tools: GitOpsStatus) -> None:
    waiting, failed, suspended = (
        CASES[name][0] for name in ("too few pods", "lint enforced", "suspended")
    )
    shown = [each.message for each in tools.argo([waiting, failed, suspended], SCRIPT)]
    assert "add pods or lower spec.replicas" in shown[0]
    assert shown[1] == LINT.message
    assert "Suspended" in shown[2]
    assert [each.message for each in tools.kstatus([waiting, failed])] == shown[:2]


def test_a_text_that_is_pruned_early_releases_nothing() -> None:
    made = plan(snapshot(PRUNED, held(OLD)), NOW)
    assert [placement.id for placement in made.desired["vllm-0"]] == [OLD.id]


def test_the_crd_gives_a_fresh_object_what_kstatus_needs(tools: GitOpsStatus) -> None:
    bare = copy.deepcopy(CASES["new"][0])
    del bare["status"]
    [without] = tools.kstatus([bare])
    assert without.status == "Current", "kstatus needs no observedGeneration: drop UNOBSERVED"


STATUSES = st.sampled_from(get_args(Condition.model_fields["status"].annotation))
CONDITIONS = st.lists(
    st.builds(
        lambda kind, status: {"type": str(kind), "status": status, "reason": "R", "message": "m"},
        st.sampled_from(list(ConditionType)),
        STATUSES,
    ),
    unique_by=lambda condition: condition["type"],
)


@given(st.lists(st.tuples(CONDITIONS, st.integers(0, 9), st.integers(1, 9)), min_size=1))
@settings(max_examples=15)
def test_an_unobserved_edit_is_never_done(
    tools: GitOpsStatus, cases: list[tuple[list[dict[str, str]], int, int]]
) -> None:
    objects = []
    for conditions, observed, ahead in cases:
        body = copy.deepcopy(EDITED)
        body["metadata"]["generation"] = observed + ahead
        body["status"] |= {"observedGeneration": observed, "conditions": conditions}
        objects.append(body)
    assert {each.status for each in tools.kstatus(objects)} == {"InProgress"}
    assert {each.status for each in tools.argo(objects, SCRIPT)} == {"Progressing"}


ENGINE = EngineState(healthy=True, address="a", port=1, block_size=16)
REFUSALS = st.builds(Refusal, st.sampled_from(list(Reason)), st.just("m"), st.booleans())


@st.composite
def declared(draw: st.DrawFn) -> Prefix:
    fields = {"suspend": draw(st.booleans()), "pinning": draw(st.sampled_from(list(Pinning)))}
    refusal = draw(st.none() | REFUSALS)
    return prefix(refusal, spec=draw(st.none() | st.just(spec(**fields))))


@st.composite
def outlooks(draw: st.DrawFn) -> Outlook:
    states = st.none() | st.builds(
        held, phase=st.sampled_from(list(Phase)), pinned=st.sampled_from(list(Pinning)),
        reason=st.sampled_from(["", *Reason]),
    )  # fmt: skip
    engines = st.sampled_from([None, ENGINE, ENGINE.model_copy(update={"healthy": False})])
    pods = draw(st.lists(st.tuples(states, engines), max_size=3))
    short = st.builds(Shortfall, st.sampled_from(list(Reason)), st.just("m"))
    return Outlook(
        prefix=draw(declared()),
        wanted=draw(st.integers(0, 4)),
        holdings=tuple(Holding(f"p{n}", state, engine) for n, (state, engine) in enumerate(pods)),
        shortfall=draw(st.none() | short),
        holders=draw(st.sampled_from([(), ("p0",)])),
    )


SAME = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}


@given(st.lists(outlooks(), min_size=1))
@settings(max_examples=15)
def test_both_tools_agree_and_ready_is_done(tools: GitOpsStatus, cases: list[Outlook]) -> None:
    statuses = [status_of(outlook, NOW) for outlook in cases]
    objects = [
        stored(replace(each.prefix, spec=spec()), status)
        for each, status in zip(cases, statuses, strict=True)
    ]
    flux, argo = tools.kstatus(objects), tools.argo(objects, SCRIPT)
    for status, by_flux, by_argo in zip(statuses, flux, argo, strict=True):
        said = {condition.type: condition.status == "True" for condition in status.conditions}
        word = "Current" if said["Ready"] else "Failed" if said["Stalled"] else "InProgress"
        assert (by_flux.status, by_argo.status) == (word, SAME[word])


def test_the_table_of_the_docs_is_true() -> None:
    table = re.findall(r"^\| ([a-z -]+) \| (\w+) \| (\w+) \|$", DOCS.read_text(), re.MULTILINE)
    assert len(table) > 10
    for name, flux, argo in table:
        assert CASES[name][1:] == (flux, argo), name


def test_the_config_map_for_argo_cd_holds_the_script() -> None:
    config_map = yaml.safe_load((ARGO / "argocd-cm.yaml").read_text())
    key = "resource.customizations.health.promptprefix.dev_PromptPrefix"
    assert config_map["data"] == {key: SCRIPT.read_text()}
