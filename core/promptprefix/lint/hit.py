"""What a rule reports: a place in the declared text, why it matters and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptprefix.payload import Payload

RENDERED_ORDER = ("systemInstructions", "defaultModeSpecs", "toolDefinitions")
"""The order in which most chat templates print the fields: system text, then tools."""

Severity: TypeAlias = Literal["Warning", "Error"]


@dataclass(frozen=True)
class Hit:
    """One place that a rule objects to.

    ``cause`` and ``fix`` are half sentences for people. They never quote the declared text, which
    is confidential. ``loses`` says whether the tokens after the place can't be reused.
    """

    rule: str
    path: str
    offset: int
    cause: str
    fix: str
    severity: Severity = "Warning"
    loses: bool = True


Rule: TypeAlias = Callable[[Payload], Iterator[Hit]]


def field_texts(payload: Payload) -> tuple[tuple[str, str], ...]:
    """Return name and text of the fields that become prompt text, in rendered order."""
    return tuple((name, getattr(payload, name)) for name in RENDERED_ORDER)
