"""What looks like an id that a program made up: UUIDs, digests, tokens of random characters."""

from __future__ import annotations

import re

_WORD = re.compile(r"[\w-]+")
_AROUND = 80
"""Characters before and after a place that belong to the word that is looked at."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f]{8,}", re.IGNORECASE)
_DIGITS = re.compile(r"\d{7,}")
_MIXED = re.compile(r"(?=(?:.*\d){2})(?=(?:.*[A-Za-z]){3})[A-Za-z0-9_-]{10,}")


def looks_random(word: str) -> bool:
    """Return whether a word looks as if a program had made it up."""
    if _UUID.search(word) or _DIGITS.search(word):
        return True
    return any(_HEX.fullmatch(part) for part in re.split(r"[-_]", word)) or bool(
        _MIXED.fullmatch(word)
    )


def random_within(text: str, start: int, end: int) -> bool:
    """Return whether a word that looks random reaches into a part of a text."""
    words = _WORD.finditer(text, max(0, start - _AROUND), end + _AROUND)
    return any(looks_random(word[0]) for word in words if word.start() < end and word.end() > start)
