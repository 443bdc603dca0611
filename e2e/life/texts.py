"""Declared texts; the engine's cache has 128 blocks of 32 tokens, and pins get half of them."""

from __future__ import annotations

BLOCK = 32
BUDGET_BLOCKS = 64


def text(subject: str, sentences: int = 40) -> str:
    """Return a system text; texts of different subjects share no block."""
    return f"{subject}. " + f"You know all about {subject} and answer in one word. " * sentences
