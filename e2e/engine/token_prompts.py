"""Prompts of token ids, for engines that are told no text."""

from __future__ import annotations


def tokens(seed: int, count: int) -> list[int]:
    """Return a prompt; those of different seeds share no block, and none has a special token."""
    return [300 + (seed * 1009 + number * 31) % 7000 for number in range(count)]
