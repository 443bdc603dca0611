"""Rule ``short-prefix``: too little text to be worth a pin."""

from __future__ import annotations

from collections.abc import Iterator

from promptprefix.lint.hit import Hit
from promptprefix.payload import Payload

RULE = "short-prefix"

MIN_TOKENS = 256
"""Below this, prefilling costs less than the care for a pin does."""


def short_prefix(payload: Payload, tokens: int, count: str, model: str) -> Iterator[Hit]:
    """Yield a hit if the prefix has few ``tokens``; ``count`` is how a reader sees the number."""
    if tokens >= MIN_TOKENS:
        return
    for_model = f" for model {model}" if model else ""
    yield Hit(
        RULE,
        "systemInstructions" if payload.system else "toolDefinitions",
        0,
        f"the whole prefix has {count}{for_model}, fewer than {MIN_TOKENS}: "
        "holding it costs more than computing it",
        "declare more of the text that all requests share, or do without this resource",
        loses=False,
    )
