"""What a sidecar tells routers of a live vLLM's blocks is what that engine finds in its cache."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
import pytest_asyncio

from e2e.block_reader import BlockReader, proof, reading, status_of
from e2e.engine.server import free_port
from e2e.engine.token_prompts import tokens
from e2e.test_kv_events import BLOCK, SALT, SOON_S, TRIAGE, Stand, standing
from e2e.waiting import until
from promptprefix.block_stream import KEY_BYTES, BlockKeys, chain, namespace_key, root_name

pytestmark = pytest.mark.timeout(900)

UID = "pod-uid"
KEY = namespace_key(bytes(KEY_BYTES), "ml")
KEYS = BlockKeys.of(KEY)
OTHERS = BlockKeys.of(namespace_key(bytes(KEY_BYTES), "other"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    async with standing(tmp_path_factory.mktemp("feed")) as made:
        made.operator.blocks_key, made.operator.pod_uid = KEY.hex(), UID
        await made.operator.want([])
        yield made


async def feeding(stand: Stand, port: int) -> None:
    """Wait until the engine is healthy and the feed has its key."""
    await stand.until_engine(lambda s: s.engine.healthy and s.engine.blocks_port == port)

    async def open_() -> bool:
        return await status_of(port, proof(KEYS, UID)) == 200

    await until(open_, "the feed lets readers in", SOON_S, 0.1)


def names(prompt: list[int], salt: str = "") -> list[bytes]:
    return chain(KEYS, root_name(KEYS, "", salt), prompt, BLOCK)


def predicted(reader: BlockReader, prompt: list[int]) -> int:
    """Return how many tokens the engine will find, by the names; it computes at least the last."""
    found = 0
    for name in names(prompt)[: (len(prompt) - 1) // BLOCK]:
        if name not in reader.held:
            break
        found += BLOCK
    return found


def holds(name: bytes, reader: BlockReader) -> bool:
    return name in reader.held


async def cached_tokens(stand: Stand, prompt: list[int]) -> int:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(f"{stand.engine.url}/v1/completions", json=body)
    answer.raise_for_status()
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def chat_tokens(stand: Stand, messages: list[dict[str, str]]) -> list[int]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        body = {"model": "demo", "messages": messages}
        answer = await client.post(f"{stand.engine.url}/tokenize", json=body)
    answer.raise_for_status()
    return list(answer.json()["tokens"])


@pytest.mark.asyncio(loop_scope="module")
async def test_a_reader_sees_what_was_computed_and_that_it_went(stand: Stand) -> None:
    port = free_port()
    with stand.sidecar("feed", PROMPTPREFIX_BLOCKS_PORT=str(port)):
        await feeding(stand, port)
        await stand.reset()
        async with reading(port, KEYS, UID) as reader, reading(port, KEYS, UID, 4) as rare:
            await reader.until(lambda r: r.whole and not r.held, SOON_S)
            assert reader.hello is not None
            assert (reader.hello.bases, reader.hello.complete) == (("demo",), True)
            prompt = tokens(1, 10 * BLOCK + 5)
            await stand.complete(prompt)
            await reader.until(lambda r: r.held == set(names(prompt)), SOON_S)
            assert reader.hello.block_size in (0, BLOCK)
            await rare.until(lambda r: r.held == set(names(prompt)[3::4]), SOON_S)

            await stand.complete(prompt, cache_salt=SALT)
            both = {*names(prompt), *names(prompt, SALT)}
            await reader.until(lambda r: r.held == both, SOON_S)
            await stand.reset()
            await reader.until(lambda r: not r.held, SOON_S)

            messages = [{"role": "system", "content": TRIAGE.system}]
            messages += [{"role": "user", "content": "Where is my parcel?"}]
            await stand.cached_tokens("Where is my parcel?")
            rendered = set(names(await chat_tokens(stand, messages)))
            await reader.until(lambda r: r.held == rendered, SOON_S)
            await stand.press()
            await reader.until(lambda r: not r.held & rendered, SOON_S)


@pytest.mark.asyncio(loop_scope="module")
async def test_names_foretell_the_engines_hits(stand: Stand) -> None:
    """Heads that prompts share, evictions, and a sidecar that starts in the midst of it."""
    dice = random.Random(7)  # noqa: S311 - a workload
    heads = [tokens(100 + number, 8 * BLOCK) for number in range(4)]

    def prompt() -> list[int]:
        tail = tokens(dice.randrange(40), dice.randrange(1, 12) * BLOCK)
        return [*dice.choice(heads), *tail, 5]

    await stand.reset()
    for _ in range(10):
        await stand.complete(prompt())
    port = free_port()
    with stand.sidecar("hits", PROMPTPREFIX_BLOCKS_PORT=str(port)):
        await feeding(stand, port)
        async with reading(port, KEYS, UID) as reader:
            await reader.until(lambda r: r.whole and r.held, SOON_S)
            assert reader.hello is not None
            assert reader.hello.complete
            hits = []
            for _ in range(60):
                each = prompt()
                foretold = predicted(reader, each)
                hits.append((foretold, await cached_tokens(stand, each)))
                await reader.until(partial(holds, names(each)[-1]), SOON_S)
    assert [foretold for foretold, _ in hits] == [found for _, found in hits]
    assert len({found for _, found in hits}) > 3


@pytest.mark.asyncio(loop_scope="module")
async def test_nobody_reads_without_a_fresh_proof(stand: Stand) -> None:
    port = free_port()
    with stand.sidecar("door", PROMPTPREFIX_BLOCKS_PORT=str(port)):
        await feeding(stand, port)
        used = proof(KEYS, UID)
        assert await status_of(port, used) == 200
        for value in (None, used, proof(OTHERS, UID), proof(KEYS, "other"), proof(KEYS, UID, at=1)):
            assert await status_of(port, value) == 401
