"""What is read of the API server's objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from promptprefix.annotations import UNPIN, WARM_NOW, ZONE_LABEL
from promptprefix.fleet import Override
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.manifests import pod_of, resource_of

SPEC = {
    "model": "m",
    "pods": {"selector": {"matchLabels": {"app": "v"}}},
    "content": {"inline": {"systemInstructions": "one"}},
}


def resource(version: int = 1, **metadata: Any) -> dict[str, Any]:
    names = {"uid": "u-1", "namespace": "ml", "name": "a", "generation": 1}
    return {"metadata": names | {"resourceVersion": str(version)} | metadata, "spec": SPEC}


def pod(labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "p-1", "namespace": "ml", "name": "p", "labels": labels or {}},
        **fields,
    }


def test_a_resource_tells_when_it_was_created_and_what_people_on_call_want() -> None:
    annotations = {WARM_NOW: "true", UNPIN: "2026-11-30T18:00:00Z", "other": "no"}

    found = resource_of(resource(creationTimestamp="2026-11-29T08:00:00Z", annotations=annotations))

    assert found.created == datetime(2026, 11, 29, 8, tzinfo=UTC)
    assert found.warm_now == Override()
    assert found.unpin == Override(datetime(2026, 11, 30, 18, tzinfo=UTC))
    assert found.notes == ()


def test_a_resource_without_annotations_asks_for_nothing() -> None:
    found = resource_of(resource(annotations=None))

    assert (found.warm_now, found.unpin, found.notes, found.created) == (None, None, (), None)


def test_each_order_that_can_not_be_understood_is_noted() -> None:
    found = resource_of(resource(annotations={WARM_NOW: "now", UNPIN: "now"}))

    assert [WARM_NOW in found.notes[0], UNPIN in found.notes[1]] == [True, True]


def test_a_changed_annotation_wakes_the_planner_though_the_generation_stays() -> None:
    woken: list[bool] = []
    cluster = Cluster(lambda: woken.append(True))
    cluster.see_resource(resource(1))
    before = len(woken)

    cluster.see_resource(resource(3, annotations={WARM_NOW: "true"}))

    assert len(woken) == before + 1
    assert cluster.resources["u-1"].warm_now == Override()


def test_an_older_reading_does_not_take_an_order_back() -> None:
    cluster = Cluster(lambda: None)
    cluster.see_resource(resource(3, annotations={UNPIN: "true"}))
    cluster.see_resource(resource(2))

    assert cluster.resources["u-1"].unpin == Override()


def test_a_pod_tells_where_it_runs() -> None:
    found = pod_of(pod({ZONE_LABEL: "eu-1a", "app": "v"}, spec={"nodeName": "node-7"}))

    assert (found.node, found.zone, found.decodes) == ("node-7", "eu-1a", False)


def test_a_pod_that_is_not_scheduled_yet_runs_nowhere() -> None:
    found = pod_of(pod(spec={}))

    assert (found.node, found.zone) == ("", "")


@pytest.mark.parametrize(
    ("labels", "decodes"),
    [
        ({"promptprefix.dev/role": "decode"}, True),
        ({"llm-d.ai/role": "decode"}, True),
        ({"promptprefix.dev/role": "prefill", "llm-d.ai/role": "decode"}, False),
        ({"llm-d.ai/role": "prefill"}, False),
        ({"llm-d.ai/role": "both"}, False),
        ({}, False),
    ],
)
def test_the_first_label_of_a_role_counts(labels: dict[str, str], decodes: bool) -> None:
    assert pod_of(pod(labels)).decodes is decodes
