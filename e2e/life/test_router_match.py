"""A match that the router sees warms a released prefix, though no engine was ever asked for it."""

from __future__ import annotations

import pytest

from e2e.life.stand import Life, chat
from e2e.life.texts import text
from e2e.router.stack import RouterStack

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

TEXT = text("ferry tickets", 30)


async def test_a_match_of_the_router_brings_it_back(stand: Life) -> None:
    async with stand.router() as router:
        stand.apply("asked", TEXT, idleTTL="6s", onIdle="Evict")
        await stand.until("asked", "Warm", ("True", "Warm"))
        await stand.until("asked", "Ready", ("True", "Released"), 40)
        # An engine that has forgotten all pins can't count a match of them: the router can.
        await stand.pods[0].post("/reset_prefix_cache")
        await _ask(router)
        await stand.until("asked", "Active", ("True", "InUse"), 15)
        await stand.until("asked", "Warm", ("True", "Warm"))
        assert await _ask(router) == stand.status("asked")["tokens"]


async def _ask(router: RouterStack) -> int:
    answer = await router.client.post(
        f"{router.url}/v1/chat/completions", json=chat(TEXT, "One way?")
    )
    answer.raise_for_status()
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"] or 0)
