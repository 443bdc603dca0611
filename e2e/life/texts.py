"""Declared texts; the engine's cache has 128 blocks of 32 tokens, and pins get half of them."""

from __future__ import annotations

BUDGET_BLOCKS = 64
SALTS = {"tenant-a": "a-salt-of-tenant-a-0001", "tenant-b": "b-salt-of-tenant-b-0002"}
"""Cache salts by the names of their Secrets."""


def text(subject: str, sentences: int = 40) -> str:
    """Return a system text; texts of different subjects share no block."""
    return f"{subject}. " + f"You know all about {subject} and answer in one word. " * sentences
