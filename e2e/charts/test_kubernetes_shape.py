"""The charts' objects have the fields of Kubernetes and no others; and the check sees faults."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.charts.installation import VALUE_SETS, objects
from e2e.charts.kubernetes_shape import faults
from e2e.charts.render import Values

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_objects_of_promptprefix(values: Values) -> None:
    found = {each["metadata"]["name"]: faults(each) for each in objects(values)}
    assert {name: each for name, each in found.items() if each} == {}


def test_a_good_pod_has_no_fault() -> None:
    assert faults(POD) == []


def test_an_unknown_field_is_named() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["image_pull_policy"] = "Never"
    assert faults(pod) == [".spec.containers[0].image_pull_policy is no field"]


@pytest.mark.parametrize(
    ("field", "value"), [("containerPort", "80"), ("name", 80), ("containerPort", None)]
)
def test_a_wrong_type_is_a_fault(field: str, value: object) -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["ports"][0][field] = value
    assert faults(pod)


def test_a_missing_field_is_named() -> None:
    pod = copy.deepcopy(POD)
    del pod["spec"]["containers"]
    assert any("containers" in fault for fault in faults(pod))
