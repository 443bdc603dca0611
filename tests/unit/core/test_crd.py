"""The generated CRD: fresh, structural, described, and as strict as the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from promptprefix import resource
from promptprefix.crd import custom_resource_definition, root_schema
from promptprefix.schedule import CRON_PATTERN, ScheduleError, read_schedule
from promptprefix.schema import SchemaError, structural_schema


def places(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema in ``schema`` with its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from places(item, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from places(schema[key], f"{path}{mark}")


PLACES = dict(places(root_schema()))


def test_names_and_subresource() -> None:
    spec = custom_resource_definition()["spec"]
    (version,) = spec["versions"]
    assert custom_resource_definition()["metadata"]["name"] == "promptprefixes.promptprefix.dev"
    assert (spec["scope"], spec["names"]["shortNames"]) == ("Namespaced", ["pp"])
    assert version["subresources"] == {"status": {}}
    columns = [(c["name"], c.get("priority", 0)) for c in version["additionalPrinterColumns"]]
    assert columns == [
        ("Ready", 0), ("Warm", 0), ("Tokens", 0), ("Window", 0), ("Fingerprint", 1), ("Age", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in PLACES if path])
def test_every_place_is_structural(path: str) -> None:
    schema = PLACES[path]
    assert not {"$ref", "title", "anyOf", "oneOf", "allOf", "const", "nullable"} & schema.keys()
    assert ("type" in schema) != bool(schema.get("x-kubernetes-int-or-string"))
    assert schema.get("additionalProperties") is not False


@pytest.mark.parametrize(
    "path", [path for path in PLACES if path and not path.endswith(("[]", ".*", ".metadata"))]
)
def test_every_field_is_described_in_a_sentence(path: str) -> None:
    assert re.search(r"^[A-Z].*[.)]$", PLACES[path]["description"], re.DOTALL)
    assert "``" not in PLACES[path]["description"]


BOUND = {"string": "maxLength", "array": "maxItems"}


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, schema in PLACES.items()
        if schema.get("type") in BOUND
        and not {"enum", "format"} & schema.keys()
        and path not in (".apiVersion", ".kind")
    ],
)
def test_every_text_and_list_is_bounded(path: str) -> None:
    assert BOUND[PLACES[path]["type"]] in PLACES[path]


def test_every_map_is_bounded() -> None:
    maps = [schema for schema in PLACES.values() if "additionalProperties" in schema]
    assert maps
    assert all("maxProperties" in schema for schema in maps)


@pytest.mark.parametrize(
    "path", [path for path, schema in PLACES.items() if schema.get("type") == "array"]
)
def test_every_list_says_how_it_merges(path: str) -> None:
    assert PLACES[path]["x-kubernetes-list-type"] in ("atomic", "set", "map")


@pytest.mark.parametrize(
    "path", [path for path in PLACES if "x-kubernetes-validations" in PLACES[path]]
)
def test_rules_have_messages_and_look_before_they_read(path: str) -> None:
    optional = set(PLACES[path].get("properties", {})) - set(PLACES[path].get("required", []))
    for rule in PLACES[path]["x-kubernetes-validations"]:
        assert rule["message"]
        read = set(re.findall(r"self\.(\w+)\b(?!\()", rule["rule"]))
        assert all(f"has(self.{name})" in rule["rule"] for name in read & optional)


def test_fields() -> None:
    assert set(root_schema()["properties"]["spec"]["properties"]) == {
        "model", "pods", "content", "tenant", "cacheSaltRef", "replicas", "priority", "pinning",
        "idleTTL", "onIdle", "windows", "normalizeRequests", "lint", "suspend",
    }  # fmt: skip


SCHEDULES = [
    ("30 7 * * MON-FRI", True),
    ("*/15 8-18 1,15 jan-mar *", True),
    ("0-30/5 0 * * 0", True),
    ("0 0 LW * *", True),
    ("0 0 * * 5L,fri#2", True),
    ("00 07 29 2 *", True),
    ("60 * * * *", False),
    ("* 24 * * *", False),
    ("0 0 0 * *", False),
    ("0 0 32 * *", False),
    ("0 0 * 13 *", False),
    ("0 0 * * 8", False),
    ("0 0 ? * *", False),
    ("0 0 * * MON,", False),
    ("0 0 * * *  ", False),
    ("0 0 0 0 0 0", False),
]


@pytest.mark.parametrize(("schedule", "accepted"), SCHEDULES)
def test_the_rule_on_schedules_is_that_of_the_reader(schedule: str, accepted: bool) -> None:
    pattern = re.compile(CRON_PATTERN.replace("^(?i)", "(?i)^"))
    assert bool(pattern.search(schedule)) is accepted
    if accepted:
        assert read_schedule(schedule, ZoneInfo("UTC")).expression == schedule
    elif schedule == schedule.strip():
        with pytest.raises(ScheduleError):
            read_schedule(schedule, ZoneInfo("UTC"))


def test_defaults() -> None:
    defaults = {
        path: schema["default"]
        for path, schema in PLACES.items()
        if path.startswith(".spec") and "default" in schema
    }
    assert defaults == {
        ".spec.content.inline.toolDefinitions": "[]",
        ".spec.content.inline.chatTemplateOptions": "{}",
        ".spec.cacheSaltRef.key": "salt",
        ".spec.replicas": "All",
        ".spec.priority": 0,
        ".spec.pinning": "Hard",
        ".spec.onIdle": "Keep",
        ".spec.windows[].timeZone": "UTC",
        ".spec.lint": {"policy": "Warn"},
        ".spec.lint.policy": "Warn",
        ".spec.normalizeRequests": False,
        ".spec.suspend": False,
    }


def test_a_fresh_object_is_not_observed_yet() -> None:
    assert PLACES[".status"]["default"] == {"observedGeneration": 0}
    resource.PromptPrefixStatus.model_validate(PLACES[".status"]["default"])


def test_limits_of_status_are_those_of_the_models() -> None:
    assert PLACES[".status.problems"]["maxItems"] == resource.MAX_PROBLEMS
    assert PLACES[".status.lint"]["maxItems"] == resource.MAX_LINT


class Union(BaseModel):
    """A union that no structural schema holds."""

    field: int | str


class Anything(BaseModel):
    """A field of any type."""

    field: Any


class Tagged(BaseModel):
    """A keyword that the translation doesn't know."""

    field: tuple[Literal["a"], int]


@pytest.mark.parametrize("model", [Union, Anything, Tagged])
def test_what_a_structural_schema_cannot_say_is_refused(model: type[BaseModel]) -> None:
    with pytest.raises(SchemaError, match=rf"{model.__name__}\.field"):
        structural_schema(model)
