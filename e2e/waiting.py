"""Waiting for other processes: they have no event, so a condition is asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

WITHIN_S = 20.0
EVERY_S = 0.02


async def until(
    condition: Callable[[], Awaitable[bool]],
    what: str,
    within: float = WITHIN_S,
    every: float = EVERY_S,
) -> None:
    """Return when ``condition`` holds; raise `AssertionError` when it does not in time."""
    try:
        async with asyncio.timeout(within):
            while not await condition():  # noqa: ASYNC110 - another process has no Event
                await asyncio.sleep(every)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {what}") from None
