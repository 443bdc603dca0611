"""What the namespaces may use of the pin budgets, as the settings say it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from promptprefix.fleet import Limits
from promptprefix.resource import MAX_PRIORITY

ALL = "*"
"""Stands for every namespace; what one says of itself is stronger, field by field."""


class NamespaceLimits(BaseModel):
    """Limits of one namespace; what is absent is as for `ALL`, else without a limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    budgetShare: float | None = Field(default=None, ge=0, le=1)  # noqa: N815 - as in the chart
    maxPriority: int | None = Field(  # noqa: N815
        default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY
    )


def _parse(value: object) -> object:
    """Read JSON; an empty value sets no limits."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else {}
    except ValueError as error:
        raise ValueError('is not JSON, such as {"*": {"budgetShare": 0.5}}') from error


LimitsByNamespace = Annotated[dict[str, NamespaceLimits], NoDecode, BeforeValidator(_parse)]


def unserved(given: Mapping[str, NamespaceLimits], namespaces: Iterable[str]) -> list[str]:
    """Return the namespaces that have limits and are not served."""
    return sorted(given.keys() - {ALL, *namespaces})


def limits_of(
    given: Mapping[str, NamespaceLimits], namespaces: Iterable[str]
) -> Mapping[str, Limits]:
    """Return the limits of each of the ``namespaces`` that has any."""
    common = given.get(ALL, NamespaceLimits())
    return {
        namespace: _limits(given.get(namespace, common), common)
        for namespace in namespaces
        if namespace in given or ALL in given
    }


def _limits(own: NamespaceLimits, common: NamespaceLimits) -> Limits:
    said = common.model_dump(exclude_none=True) | own.model_dump(exclude_none=True)
    none = Limits()
    return Limits(
        budget_share=said.get("budgetShare", none.budget_share),
        max_priority=said.get("maxPriority", none.max_priority),
    )
