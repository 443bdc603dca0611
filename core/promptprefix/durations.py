"""Durations as Go and Kubernetes write them: hours, minutes and seconds (``1h30m``, ``600s``)."""

from __future__ import annotations

import re
from datetime import timedelta

DURATION_PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$"
DURATION_RULE = "must be a duration of hours, minutes and seconds, such as 1h30m or 600s"

_PARTS = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?", re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Return the duration; raise `ValueError` if it is none."""
    found = _PARTS.fullmatch(text)
    if not text or found is None:
        raise ValueError(DURATION_RULE)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)
