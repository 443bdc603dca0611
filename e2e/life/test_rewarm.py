"""Whatever happens to a part, its prefixes are warm again without anybody's doing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.life.stand import Life, Pod, until
from e2e.life.texts import text

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

TEXT = text("pilot boats")


@pytest.fixture
async def tokens(stand: Life) -> int:
    stand.apply("steady", TEXT)
    await stand.until("steady", "Warm", ("True", "Warm"))
    return int(stand.status("steady")["tokens"])


async def test_a_cache_reset(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    async with _warmed_again(pod):
        await pod.post("/reset_prefix_cache")
    assert await pod.cached_tokens(TEXT, "Hello?") == tokens
    await _until_pinned(stand, pod)


async def test_sleep_and_wake(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    await pod.post("/sleep?level=1")
    await stand.until("steady", "Ready", ("False", "EngineAsleep"))
    async with _warmed_again(pod):
        await pod.post("/wake_up")
    await stand.until("steady", "Ready", ("True", "Warm"))
    assert await pod.cached_tokens(TEXT, "Hello?") == tokens


async def test_a_sidecar_that_is_killed_finds_its_pins(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    pod.kill_sidecar()
    await pod.press()
    assert await pod.cached_tokens(TEXT, "Hello?") == tokens
    pod.start_sidecar()
    await stand.until_healthy(pod)
    await _until_pinned(stand, pod)
    assert await pod.metric("own_prompt_tokens_computed_total") < tokens, "nothing was lost"


async def test_an_operator_that_is_away(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    await stand.stop_operator()
    await pod.press()
    assert await pod.cached_tokens(TEXT, "Hello?") == tokens
    warm_ups = await pod.metric("warm_ups_total")
    await stand.start_operator()
    await stand.until("steady", "Ready", ("True", "Warm"))
    assert await pod.metric("warm_ups_total") == warm_ups
    assert stand.status("steady")["pinnedPods"] == 1


async def test_an_api_server_that_hangs(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    with _hanging(stand.server):
        await pod.press()
        assert await pod.cached_tokens(TEXT, "Hello?") == tokens
        async with _warmed_again(pod):
            await pod.post("/reset_prefix_cache")
        assert await pod.cached_tokens(TEXT, "Hello?") == tokens
    # An operator that could not renew its Lease for long has ended; the kubelet starts it again.
    await stand.stop_operator()
    await stand.start_operator()
    await stand.until("steady", "Ready", ("True", "Warm"))
    assert stand.status("steady")["pinnedPods"] == 1


async def test_a_new_replica_and_a_killed_engine(stand: Life, tokens: int) -> None:
    pod = stand.pods[0]
    other = await stand.add_pod("vllm-1")

    async def on_both() -> bool:
        return bool(stand.status("steady")["warm"] == "2/2")

    await until(on_both, "the new pod is warm too")
    assert await other.cached_tokens(TEXT, "Hello?") == tokens
    pod.engine.kill()
    await stand.until("steady", "Ready", ("False", "EngineNotHealthy"))
    pod.engine.start()
    await stand.until_healthy(pod)
    await until(on_both, "the engine that was killed is warm again")
    assert await pod.cached_tokens(TEXT, "Hello?") == tokens
    assert await pod.metric("engine_restarts_total") == 1
    stand.remove_pod(other)


@asynccontextmanager
async def _warmed_again(pod: Pod) -> AsyncIterator[None]:
    """Return when the sidecar has warmed the prefix once more than before the block."""
    before = await pod.metric("warm_ups_total", outcome="warm")
    yield

    async def warmed() -> bool:
        return await pod.metric("warm_ups_total", outcome="warm") > before

    await until(warmed, f"{pod.name}: warmed again")


async def _until_pinned(stand: Life, pod: Pod) -> None:
    async def pinned() -> bool:
        blocks = int(stand.status("steady")["blocks"])
        return await pod.metric("pinned_blocks") == blocks

    await until(pinned, "the prefix is pinned again")


@contextmanager
def _hanging(server: Cluster) -> Iterator[None]:
    """Stop the API server from running for as long as the block lasts."""
    parent = server.namespaces.running["kube-apiserver"].pid
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    os.kill(int(child), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(child), signal.SIGCONT)
        os.kill(parent, signal.SIGCONT)  # what started it stops with its child
