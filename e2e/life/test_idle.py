"""The sliding idle time: held while requests match, released after, warmed again by a match."""

from __future__ import annotations

import asyncio
import time

import pytest

from e2e.life.stand import Life, until
from e2e.life.texts import text
from promptprefix.wire import MATCH_STEP_S

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

TTL_S = 30
"""The shortest that is sensible: matches are told in steps of 15 s."""
TEXT = text("lighthouse keeping")


@pytest.mark.parametrize("on_idle", ["Evict", "Keep"])
async def test_it_is_held_while_used_and_comes_back_with_a_match(stand: Life, on_idle: str) -> None:
    pod = stand.pods[0]
    name = f"sliding-{on_idle.lower()}"
    stand.apply(name, TEXT, idleTTL=f"{TTL_S}s", onIdle=on_idle)
    await stand.until(name, "Warm", ("True", "Warm"))
    assert stand.condition(name, "Active") == ("True", "InUse")
    tokens = stand.status(name)["tokens"]

    began = time.monotonic()
    while time.monotonic() - began < 2.5 * TTL_S:  # matches alone hold it for longer than one time
        assert await pod.cached_tokens(TEXT, "Is the lamp lit?") == tokens
        assert stand.condition(name, "Active") == ("True", "InUse")
        await asyncio.sleep(TTL_S / 6)
    await stand.until(name, "Active", ("False", "Idle"), TTL_S + MATCH_STEP_S + 15)
    await stand.until(name, "Ready", ("True", "Released"))
    assert await pod.metric("pinned_blocks") == 0

    left = await pod.cached_tokens(TEXT, "And now?")
    assert left == (0 if on_idle == "Evict" else tokens)
    await stand.until(name, "Active", ("True", "InUse"))
    await stand.until(name, "Warm", ("True", "Warm"))
    assert stand.status(name)["pinnedPods"] == 1
    await pod.press()
    assert await pod.cached_tokens(TEXT, "Still there?") == tokens


async def test_our_own_traffic_is_no_use(stand: Life) -> None:
    """Renewals and reports go on all the time, and hold nothing."""
    pod = stand.pods[0]
    stand.apply("unused", TEXT, idleTTL="8s")
    await stand.until("unused", "Warm", ("True", "Warm"))
    before = await pod.metric("own_prompt_tokens_total")
    await stand.until("unused", "Active", ("False", "Idle"), 25)
    assert await pod.metric("own_prompt_tokens_total") > before


async def test_offload_without_a_tier_says_so(stand: Life) -> None:
    pod = stand.pods[0]
    stand.apply("offloaded", TEXT, idleTTL="5s", onIdle="Offload")
    await stand.until("offloaded", "Ready", ("True", "Released"), 40)
    [problem] = stand.status("offloaded")["problems"]
    assert (problem["pod"], problem["reason"]) == (pod.name, "NoOffloadTier")

    async def unpinned() -> bool:
        return await pod.metric("pinned_blocks") == 0

    await until(unpinned, "the pin is gone all the same")
