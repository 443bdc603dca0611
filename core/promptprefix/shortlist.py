"""Lists in sentences for people: a few names, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence


def shortlist(names: Sequence[str], total: int) -> str:
    """Return the ``names``, and how many more there are of ``total``; empty without any."""
    rest = total - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
