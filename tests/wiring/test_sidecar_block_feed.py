"""A sidecar beside a simulated engine feeds routers with the names of its blocks."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from e2e.block_reader import BlockReader, proof, reading, status_of
from e2e.simulator.options import SimulatorOptions
from e2e.simulator.publisher import publishing
from e2e.simulator.simulated_engine import SimulatedEngine
from promptprefix.block_stream import BLOCKS_PATH, KEY_BYTES, BlockKeys, chain, root_name
from promptprefix_sidecar.block_feed.feed import MAX_READERS
from promptprefix_sidecar.sidecar import Sidecar

from .fake_control import FakeControl
from .sidecar_harness import running, until
from .test_sidecar_kv_events import BLOCKS, NEVER_S, Simulated

KEY = bytes(range(KEY_BYTES))
KEYS = BlockKeys.of(KEY)
OTHERS = BlockKeys.of(bytes(KEY_BYTES))
UID = "pod-uid"
BLOCK = 32


def prompt(start: int, blocks: int) -> list[int]:
    """Return the tokens that `Simulated.complete` sends, but for what is in no whole block."""
    return [300 + (start * 1009 + place * 31) % 7000 for place in range(blocks * BLOCK + 1)]


def names(start: int, blocks: int, salt: str = "") -> set[bytes]:
    return set(chain(KEYS, root_name(KEYS, "", salt), prompt(start, blocks), BLOCK))


@dataclass(frozen=True)
class Stand:
    simulated: Simulated
    control: FakeControl
    folder: Path
    port: int

    @contextlib.asynccontextmanager
    async def sidecar(self) -> AsyncIterator[Sidecar]:
        settings = {
            "kv_events_endpoint": f"ipc://{self.folder}/events",
            "kv_events_replay_endpoint": f"ipc://{self.folder}/replay",
            "touch_interval_s": NEVER_S,
            "blocks_port": self.port,
        }
        async with running(self.simulated, self.control, self.folder, **settings) as sidecar:  # type: ignore[arg-type]
            await until(sidecar, lambda s: s.blocks_port and s.pod_uid and s.engine.healthy)
            yield sidecar

    async def compute(self, start: int, blocks: int) -> None:
        await self.simulated.complete(start, blocks * BLOCK + 1)

    def reading(self, every: int = 1) -> contextlib.AbstractAsyncContextManager[BlockReader]:
        return reading(self.port, KEYS, UID, every)


@pytest.fixture
async def stand(control: FakeControl, tmp_path: Path) -> AsyncIterator[Stand]:
    options = SimulatorOptions(blocks=BLOCKS, plugin=False, key=b"k" * 32, events=True)
    simulated = Simulated(SimulatedEngine(options))
    control.blocks_key, control.pod_uid = KEY.hex(), UID
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with publishing(simulated.engine, f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"):
        yield Stand(simulated, control, tmp_path, port)
    simulated.engine.crash()


def metric(sidecar: Sidecar, name: str, **labels: str) -> float | None:
    return sidecar.metrics.registry.get_sample_value(
        f"promptprefix_sidecar_block_feed_{name}", labels
    )


async def test_a_router_knows_what_was_computed_evicted_and_cleared(stand: Stand) -> None:
    async with stand.sidecar(), stand.reading() as router, stand.reading(4) as rare:
        await stand.compute(1, 8)
        await router.until(lambda r: r.held == names(1, 8))
        assert router.hello is not None
        assert (router.hello.block_size, router.hello.bases) == (BLOCK, ("demo",))
        assert (router.whole, router.hello.complete) == (True, True)
        inner = chain(KEYS, root_name(KEYS), prompt(1, 8), BLOCK)[3::4]
        await rare.until(lambda r: r.held == set(inner))
        await stand.compute(2, BLOCKS - 2)
        await router.until(lambda r: not r.held & names(1, 8))
        assert router.held == names(2, BLOCKS - 2)
        await stand.simulated.reset()
        await router.until(lambda r: not r.held)
        await rare.until(lambda r: not r.held)


async def test_salted_blocks_are_known_by_their_salt(stand: Stand) -> None:
    salt = "a-salt-of-sixteen"
    body = {"model": "demo", "prompt": prompt(1, 4), "max_tokens": 1, "cache_salt": salt}
    async with stand.sidecar(), stand.reading() as router:
        async with stand.simulated.client() as client:
            (await client.post("/v1/completions", json=body)).raise_for_status()
        await router.until(lambda r: r.held == names(1, 4, salt))
        assert not router.held & names(1, 4)


async def test_a_sidecar_that_starts_later_tells_of_what_was_before(stand: Stand) -> None:
    await stand.compute(1, 8)
    async with stand.sidecar(), stand.reading() as router:
        await router.until(lambda r: r.held == names(1, 8))
        assert router.hello is not None
        assert router.hello.complete
        await stand.compute(2, 3)
        await router.until(lambda r: r.held == names(1, 8) | names(2, 3))


async def test_nobody_reads_without_the_key_and_nobody_twice_by_one_proof(stand: Stand) -> None:
    async with stand.sidecar() as sidecar:
        used = proof(KEYS, UID)
        assert await status_of(stand.port, used) == 200
        refused = {
            "none": None,
            "used": used,
            "other key": proof(OTHERS, UID),
            "other pod": proof(KEYS, "another"),
            "other step": proof(KEYS, UID, 2),
            "bearer": "Bearer x",
            "old": proof(KEYS, UID, at=1_700_000_000.0),
        }
        assert {name: await status_of(stand.port, value) for name, value in refused.items()} == (
            dict.fromkeys(refused, 401)
        )
        assert await status_of(stand.port, proof(KEYS, UID, 65), "every=65") == 400
        assert await status_of(stand.port, None, "every=65") == 401
        assert metric(sidecar, "refused_total", reason="proof") == len(refused) + 1
        assert metric(sidecar, "refused_total", reason="step") == 1
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{stand.port}"
            for method, path, status in (("HEAD", BLOCKS_PATH, 405), ("GET", "/metrics", 404)):
                async with session.request(method, url + path) as response:
                    assert response.status == status


async def test_without_a_key_nobody_is_let_in(stand: Stand) -> None:
    stand.control.blocks_key = ""
    settings = {"kv_events_endpoint": f"ipc://{stand.folder}/events", "blocks_port": stand.port}
    async with running(stand.simulated, stand.control, stand.folder, **settings) as sidecar:  # type: ignore[arg-type]
        await until(sidecar, lambda s: s.blocks_port)
        assert await status_of(stand.port, proof(KEYS, UID)) == 401


async def test_readers_are_bounded(stand: Stand) -> None:
    async with stand.sidecar() as sidecar, contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_READERS):
            await stack.enter_async_context(stand.reading())
        assert await status_of(stand.port, proof(KEYS, UID)) == 503
        assert metric(sidecar, "consumers") == MAX_READERS
        assert metric(sidecar, "refused_total", reason="room") == 1


async def test_the_port_is_told_and_readers_hear_of_the_end(stand: Stand) -> None:
    async with contextlib.AsyncExitStack() as readers:
        async with stand.sidecar() as sidecar:
            assert sidecar.board.snapshot.blocks_port == stand.port
            reported = await stand.control.reported(lambda s: s.engine.blocks_port)
            assert reported.engine.blocks_port == stand.port
            reader = await readers.enter_async_context(stand.reading())
            await reader.until(lambda r: r.whole)
        await reader.until(lambda r: r.ended)


async def test_a_port_that_is_taken_keeps_no_pod_out_of_service(stand: Stand) -> None:
    settings = {"kv_events_endpoint": f"ipc://{stand.folder}/events", "blocks_port": stand.port}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stand.port))
        taken.listen()
        async with running(stand.simulated, stand.control, stand.folder, **settings) as sidecar:  # type: ignore[arg-type]
            await until(sidecar, lambda s: s.gate.open)
            assert sidecar.board.snapshot.blocks_port == 0
