"""Orders of a person on call: what the annotations of a PromptPrefix ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from promptprefix.fleet import Override

_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
_OFF = ("", "false")


def override_in(annotations: Mapping[str, str], key: str) -> tuple[Override | None, str]:
    """Return what the annotation ``key`` asks for, and why it can't be understood, if it can't.

    It is ``"true"``, or the instant at which it ends as in RFC 3339; empty and ``"false"`` ask for
    nothing. What can't be understood asks for nothing either.
    """
    text = str(annotations.get(key, "")).strip()
    if text in _OFF:
        return None, ""
    if text == "true":
        return Override(), ""
    try:
        return Override(_instant(text)), ""
    except (ValueError, OverflowError):
        return None, (
            f'The annotation {key} has no effect: its value must be "true" or the instant at which '
            "it ends, with its offset, such as 2030-01-31T18:00:00Z."
        )


def _instant(text: str) -> datetime:
    if _INSTANT.fullmatch(text) is None:
        raise ValueError("not as in RFC 3339")
    return datetime.fromisoformat(text.upper()).astimezone(UTC)
