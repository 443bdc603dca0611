"""Chart.yaml: what registries and Artifact Hub show."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml

from e2e.charts.installation import CHART
from e2e.charts.render import CHARTS
from promptprefix.crd import custom_resource_definition
from promptprefix.resource import API_VERSION, KIND, PromptPrefixSpec

METADATA: dict[str, Any] = yaml.safe_load((CHARTS / CHART / "Chart.yaml").read_text())


def annotation(name: str) -> Any:
    return yaml.safe_load(METADATA["annotations"][f"artifacthub.io/{name}"])


def test_the_application_is_this_one() -> None:
    project = tomllib.loads((CHARTS.parent / "pyproject.toml").read_text())["project"]
    assert METADATA["appVersion"] == project["version"]
    assert annotation("license") == project["license"]
    assert METADATA["kubeVersion"] == ">=1.29.0-0"


def test_the_definition_is_described() -> None:
    definition = custom_resource_definition()
    (described,) = annotation("crds")
    assert described["name"] == definition["metadata"]["name"]
    assert described["kind"] == KIND
    assert f"promptprefix.dev/{described['version']}" == API_VERSION


def test_the_example_is_valid() -> None:
    (example,) = annotation("crdsExamples")
    assert (example["apiVersion"], example["kind"]) == (API_VERSION, KIND)
    PromptPrefixSpec.model_validate(example["spec"])
