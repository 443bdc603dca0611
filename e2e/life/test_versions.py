"""An edit: the new text is warm before anything of the old goes, and both serve their clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from e2e.life.stand import VERSION_IDLE_S, Life, instant, sleep_until, until
from e2e.life.texts import text

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

OLD, NEW, THIRD = text("anchor chains", 30), text("mooring lines", 30), text("fenders", 30)


async def test_both_are_served_until_the_old_one_is_no_longer_asked_for(stand: Life) -> None:
    pod = stand.pods[0]
    stand.apply("edited", OLD)
    await stand.until("edited", "Warm", ("True", "Warm"))
    [first] = stand.status("edited")["versions"]
    tokens = stand.status("edited")["tokens"]

    stand.apply("edited", NEW)
    async with _asked(stand, OLD, tokens):  # a client that has not heard of the edit
        await _until_versions(stand, "edited", 2)
        await stand.until("edited", "Warm", ("True", "Warm"))
        newest, older = stand.status("edited")["versions"]
        assert (older["id"], older["warmPods"]) == (first["id"], 1)
        assert newest["warmPods"] == 1
        await pod.press()
        assert await pod.cached_tokens(NEW, "Which?") == stand.status("edited")["tokens"]
        # Nothing happens, for longer than a version that nobody asks for is kept.
        await sleep_until(instant(older["superseded"]) + VERSION_IDLE_S + 5)
        assert len(stand.status("edited")["versions"]) == 2
    await _until_versions(stand, "edited", 1)
    await pod.press()
    assert await pod.cached_tokens(OLD, "Anybody?") == 0
    assert await pod.cached_tokens(NEW, "Which?") == stand.status("edited")["tokens"]


async def test_a_rollback_finds_its_text_warm(stand: Life) -> None:
    pod = stand.pods[0]
    stand.apply("rolled", OLD)
    await stand.until("rolled", "Warm", ("True", "Warm"))
    stand.apply("rolled", NEW)
    await _until_versions(stand, "rolled", 2)
    await stand.until("rolled", "Warm", ("True", "Warm"))
    computed = await pod.metric("own_prompt_tokens_computed_total")
    stand.apply("rolled", OLD)

    async def rolled_back() -> bool:
        status = stand.status("rolled")
        ids = [each["warmPods"] for each in status["versions"]]
        return status["observedGeneration"] == 3 and ids[:1] == [1]

    await until(rolled_back, "the old text is the declared one and warm", 5)
    more = await pod.metric("own_prompt_tokens_computed_total") - computed
    assert more < stand.status("rolled")["tokens"] / 2, "nothing was computed again"


async def test_a_burst_of_edits_is_one(stand: Life) -> None:
    pod = stand.pods[0]
    stand.apply("burst", OLD)
    await stand.until("burst", "Warm", ("True", "Warm"))
    before = await pod.metric("warm_ups_total")
    for number in range(5):
        stand.apply("burst", text(f"draft {number}", 30))
        await asyncio.sleep(0.3)
    stand.apply("burst", THIRD)
    await _until_versions(stand, "burst", 2)
    await stand.until("burst", "Warm", ("True", "Warm"))
    assert await pod.metric("warm_ups_total") == before + 1


async def test_an_operator_that_restarts_in_the_middle_remembers(stand: Life) -> None:
    pod = stand.pods[0]
    stand.apply("kept", OLD)
    await stand.until("kept", "Warm", ("True", "Warm"))
    tokens = stand.status("kept")["tokens"]
    async with _asked(stand, OLD, tokens):
        stand.apply("kept", NEW)
        await _until_versions(stand, "kept", 2)
        await stand.stop_operator()
        await stand.start_operator()
        await stand.until("kept", "Warm", ("True", "Warm"))
        await pod.press()
        assert await pod.cached_tokens(OLD, "Hello?") == tokens
        assert [each["warmPods"] for each in stand.status("kept")["versions"]] == [1, 1]
    await _until_versions(stand, "kept", 1)


async def _until_versions(stand: Life, name: str, count: int) -> None:
    async def holds() -> bool:
        return len(stand.status(name).get("versions", ())) == count

    await until(holds, f"{name} has {count} versions", 3 * VERSION_IDLE_S)


@contextlib.asynccontextmanager
async def _asked(stand: Life, wanted: str, tokens: int) -> AsyncIterator[None]:
    """Ask with that text every two seconds; it must be found cached each time."""
    found: list[int] = []

    async def ask() -> None:
        while True:
            found.append(await stand.pods[0].cached_tokens(wanted, "Are you there?"))
            await asyncio.sleep(2)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    assert found
    assert set(found) == {tokens}
