"""The pin budget: who has priority gets the room, who loses is told by whom, heads count once."""

from __future__ import annotations

import pytest

from e2e.life.stand import Life
from e2e.life.texts import BUDGET_BLOCKS, text

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

LARGE = 110
"""Sentences; such a text takes more than half of the budget."""


async def test_the_higher_priority_takes_the_room_and_gives_it_back(stand: Life) -> None:
    pod = stand.pods[0]
    low, high = text("tide tables", LARGE), text("storm warnings", LARGE)
    stand.apply("low", low)
    await stand.until("low", "Warm", ("True", "Warm"))
    blocks = stand.status("low")["blocks"]
    assert BUDGET_BLOCKS / 2 < blocks <= BUDGET_BLOCKS

    stand.apply("high", high, priority=10)
    await stand.until("high", "Warm", ("True", "Warm"))
    await stand.until("low", "Ready", ("False", "BudgetExceeded"))
    told = stand.told("low", "Ready")
    assert "high" in told, told
    assert "priority 10" in told, told
    assert stand.status("high")["pinnedPods"] == 1
    assert await pod.metric("pinned_blocks") <= BUDGET_BLOCKS
    await pod.press()
    assert await pod.cached_tokens(high, "Wind?") == stand.status("high")["tokens"]
    assert await pod.cached_tokens(low, "Tide?") == 0

    stand.delete("high")
    await stand.until("low", "Warm", ("True", "Warm"))
    assert stand.status("low")["pinnedPods"] == 1


async def test_an_equal_priority_does_not_displace(stand: Life) -> None:
    stand.apply("first", text("tide tables", LARGE))
    await stand.until("first", "Warm", ("True", "Warm"))
    stand.apply("second", text("storm warnings", LARGE))
    await stand.until("second", "Ready", ("False", "BudgetExceeded"))
    assert "first" in stand.told("second", "Ready")
    assert stand.condition("first", "Warm") == ("True", "Warm")


async def test_a_shared_head_is_counted_once(stand: Life) -> None:
    """Each alone takes more than half of the budget; both fit, since most of them is the same."""
    pod = stand.pods[0]
    head = text("beacons", LARGE)
    stand.apply("red", head + "Speak of red ones. " * 4)
    await stand.until("red", "Warm", ("True", "Warm"))
    alone = await pod.metric("pinned_blocks")
    assert alone > BUDGET_BLOCKS / 2
    stand.apply("green", head + "Talk about the green. " * 4)
    await stand.until("green", "Warm", ("True", "Warm"))
    assert stand.condition("red", "Warm") == ("True", "Warm")
    assert stand.status("red")["pinnedPods"] == stand.status("green")["pinnedPods"] == 1
    both = await pod.metric("pinned_blocks")
    assert alone <= both < alone + 8
