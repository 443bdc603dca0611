"""Durations as Go and Kubernetes write them: hours, minutes and seconds (``1h30m``, ``600s``)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from promptprefix.schema import Schema, cel, rules

DURATION_PATTERN: Final = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$"
DURATION_RULE: Final = "must be a duration of hours, minutes and seconds, such as 1h30m or 600s"
MAX_HOURS: Final = 8_784
"""Hours of the longest `Duration`: a leap year."""

_BOUNDS = f"must be longer than 0s and at most {MAX_HOURS}h"
_PARTS = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?", re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Return the duration; raise `ValueError` if it is none."""
    found = _PARTS.fullmatch(text)
    if not text or found is None:
        raise ValueError(DURATION_RULE)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


def _bounded(value: object) -> object:
    if isinstance(value, str) and not (
        timedelta(0) < parse_duration(value) <= timedelta(hours=MAX_HOURS)
    ):
        raise ValueError(_BOUNDS)
    return value


Duration = Annotated[
    str,
    Field(min_length=2, max_length=20, pattern=DURATION_PATTERN),
    BeforeValidator(_bounded),
]
"""Text of a duration in the resource, within bounds."""


def duration_rules(field: str) -> Schema:
    """Return the rule by which the API server refuses a `Duration` out of bounds in ``field``."""
    rule = f"duration(self) > duration('0s') && duration(self) <= duration('{MAX_HOURS}h')"
    return rules(cel(rule, f"{field} {_BOUNDS}"))
