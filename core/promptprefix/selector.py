"""Label selectors: which pods of a namespace a resource means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from promptprefix.schema import Strict, cel, rules

LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
DNS_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"

LabelKey = Annotated[
    str, Field(min_length=1, max_length=317, pattern=rf"^({DNS_NAME}/)?{LABEL_NAME}$")
]
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^({LABEL_NAME})?$")]


class LabelRequirement(Strict):
    """One requirement of a label selector."""

    key: LabelKey = Field(description="Label key that the requirement applies to.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Relation of the key to the values."
    )
    values: list[LabelValue] = Field(
        default=[],
        max_length=64,
        description="Values for In and NotIn; empty for Exists and DoesNotExist.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    @model_validator(mode="after")
    def _values_fit(self) -> LabelRequirement:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"values must be given for In and NotIn only (key {self.key})")
        return self

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                "values must be given for the operators In and NotIn, and only for them",
            )
        )
    )


class LabelSelector(Strict):
    """A Kubernetes label selector; an empty one would select every pod and is refused."""

    matchLabels: dict[str, LabelValue] = Field(  # noqa: N815
        default={}, max_length=32, description="Labels that a pod must carry with these values."
    )
    matchExpressions: list[LabelRequirement] = Field(  # noqa: N815
        default=[],
        max_length=32,
        description="Requirements that a pod's labels must meet.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-map-type": "atomic",
            **rules(
                cel(
                    "(has(self.matchLabels) && size(self.matchLabels) > 0) "
                    "|| (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
                    "the selector must name at least one label: an empty one selects every pod",
                )
            ),
        }
    )

    @model_validator(mode="after")
    def _not_empty(self) -> LabelSelector:
        if not self.matchLabels and not self.matchExpressions:
            raise ValueError("the selector must name at least one label")
        return self

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether a pod with ``labels`` is selected."""
        return all(labels.get(k) == v for k, v in self.matchLabels.items()) and all(
            _meets(requirement, labels) for requirement in self.matchExpressions
        )


EVERY_POD = LabelSelector(
    matchExpressions=[LabelRequirement(key="promptprefix.dev/never-set", operator="DoesNotExist")]
)
"""Selects all pods, for those that hold something already."""


def _meets(requirement: LabelRequirement, labels: dict[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case "In":
            return present and labels[requirement.key] in requirement.values
        case "NotIn":
            return not present or labels[requirement.key] not in requirement.values
