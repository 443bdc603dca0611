"""The precise mode behind a real Envoy, and behind a gateway: engines that tokenize and feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.router.fake_control import FakeControl
from e2e.router.feeding_engine import KEY, FeedingEngine
from e2e.router.gateway_stack import GatewayStack
from e2e.router.samples import CHAT, DECISION, declared, pool, prefix
from e2e.router.stack import MODEL, TENANT, TENANT_HEADER, RouterStack, public_folder
from e2e.waiting import until
from promptprefix.wire import BlocksKey, RoutePrefix, TenantSalt

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Some long text that nobody declared. " * 100
SALT = "salt-of-a"
PODS, FALLBACKS = "promptprefix_router_precise_pods", "promptprefix_router_precise_fallbacks_total"
HELD = "held;match=undeclared"


@dataclass
class Precise:
    """A stack whose picker is in the precise mode."""

    stack: RouterStack
    engines: list[FeedingEngine]

    async def publish(
        self,
        prefixes: tuple[RoutePrefix, ...] = (),
        tenants: tuple[TenantSalt, ...] = (),
        without: str = "",
    ) -> None:
        """Publish a table; engines in ``without`` are not in it. Wait for their feeds."""
        engines = [engine for engine in self.engines if engine.name not in without]
        endpoints = tuple(
            endpoint.model_copy(update={"blocks_port": engine.blocks_port})
            for endpoint, engine in zip(pool(engines), engines, strict=True)
        )
        await self.stack.publish(prefixes, endpoints, tenants)
        await self.feeds(len(engines))

    async def feeds(self, whole: int) -> None:
        """Wait until so many feeds are whole."""

        async def heard() -> bool:
            return await self.stack.metric(PODS, state="whole") == whole

        await until(heard, f"{whole} feeds are whole")

    async def ask(self, text: str, path: str = CHAT, **headers: str) -> httpx.Response:
        """Send a prompt. What is held of it outweighs the load that earlier ones leave."""
        body: dict[str, Any] = {"model": MODEL, "prompt": text}
        if path == CHAT:
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.stack.client.post(f"{self.stack.url}{path}", json=body, headers=names)

    async def told(self, engine: str, blocks: float) -> None:
        """Wait until the picker has more names than ``blocks``: an engine told of a prompt."""

        async def more() -> bool:
            return await self.stack.metric("promptprefix_router_precise_blocks") > blocks

        await until(more, f"the picker knows what {engine} holds")

    def named(self, name: str) -> FeedingEngine:
        """Return an engine."""
        return next(engine for engine in self.engines if engine.name == name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole() -> AsyncIterator[Precise]:
    """Start all once; the picker in the precise mode."""
    async with AsyncExitStack() as closing:
        folder = closing.enter_context(public_folder())
        control = await FakeControl(folder).start()
        control.blocks_keys = (BlocksKey(namespace=TENANT, key=KEY.hex()),)
        closing.push_async_callback(control.stop)
        engines = [await FeedingEngine(name, bases=(MODEL,)).start() for name in ("a", "b", "c")]
        for engine in engines:
            closing.push_async_callback(engine.stop)
        stack = RouterStack(folder / "envoy", control, [*engines])
        closing.push_async_callback(stack.stop)
        await stack.start()
        await stack.stop_picker()
        # The tests share two cores with others.
        await stack.start_picker(UNDECLARED_MODE="precise", PRECISE_TIMEOUT_MS=1500)
        yield Precise(stack, engines)


@pytest_asyncio.fixture(loop_scope="module")
async def precise(whole: Precise) -> Precise:
    """Give the stack with three ready engines whose feeds are whole, and with empty caches."""
    for engine in whole.engines:
        engine.seen.clear()
        engine.reset()
        engine.rendered = 0
    await whole.publish()

    async def empty() -> bool:
        return await whole.stack.metric("promptprefix_router_precise_blocks") == 0

    await until(empty, "the picker knows that nothing is held")
    await whole.stack.settled()
    return whole


async def test_the_next_turn_goes_to_the_pod_that_holds_the_talk(precise: Precise) -> None:
    first = await precise.ask(TEXT, "/v1/completions")
    assert first.headers[DECISION] == "hashed;match=undeclared"
    turns = TEXT
    for number in range(4):
        turns += f"Turn {number}. "
        await precise.stack.settled()
        again = await precise.ask(turns, "/v1/completions")
        assert again.headers[DECISION] == HELD
        assert again.json() == first.json()
    assert sum(engine.rendered for engine in precise.engines) == 5
    mode = "promptprefix_router_undeclared_mode"
    assert await precise.stack.metric(mode, mode="precise") == 1
    assert await precise.stack.metric(f"{mode}_wanted", mode="precise") == 1


async def test_what_came_by_others_is_known_too(precise: Precise) -> None:
    """A prompt that this router never sent: the engine tells of it."""
    engine = precise.named("c")
    body = {"model": MODEL, "prompt": TEXT}
    url = f"http://127.0.0.1:{engine.port}/v1/completions"
    assert (await precise.stack.client.post(url, json=body)).status_code == httpx.codes.OK
    await precise.told("c", 0)
    response = await precise.ask(f"{TEXT} And more.", "/v1/completions")
    assert response.headers[DECISION] == HELD
    assert response.json()["engine"] == "c"


@pytest.mark.parametrize("how", ["reset", "restart"])
async def test_an_engine_that_lost_its_cache_draws_nothing(precise: Precise, how: str) -> None:
    first = await precise.ask(TEXT)
    await precise.told("one", 0)
    engine = precise.named(first.json()["engine"])
    if how == "reset":
        engine.reset()
    else:
        engine.restart()

    async def forgotten() -> bool:
        return await precise.stack.metric("promptprefix_router_precise_blocks") == 0

    await until(forgotten, "the picker knows that the cache is empty")
    assert (await precise.ask(TEXT)).headers[DECISION] == "hashed;match=undeclared"


async def test_the_salt_of_a_tenant_keeps_its_prompts_apart(precise: Precise) -> None:
    await precise.publish(
        (prefix().model_copy(update={"salt": SALT, "owner": "team-a"}),),
        (TenantSalt(namespace=TENANT, tenant="team-a", salt=SALT),),
    )
    mine = {TENANT_HEADER: "team-a"}
    first = await precise.ask(TEXT, **mine)
    assert first.headers[DECISION] == "hashed;match=undeclared"
    assert (await precise.ask(TEXT, **mine)).headers[DECISION] == HELD
    assert (await precise.ask(TEXT)).headers[DECISION] == "hashed;match=undeclared"


async def test_declared_prefixes_are_not_asked_for(precise: Precise) -> None:
    await precise.publish((prefix(),))
    body = declared("x" * 5000)
    response = await precise.stack.client.post(f"{precise.stack.url}{CHAT}", json=body)
    assert response.headers[DECISION] == "cold;match=fingerprint"
    assert not any(engine.rendered for engine in precise.engines)


async def test_engines_that_do_not_tokenize_cost_a_fallback(precise: Precise) -> None:
    before = await precise.stack.metric(FALLBACKS, reason="invalid")
    for engine in precise.engines:
        engine.rendering = False
    try:
        responses = [await precise.ask(TEXT) for _ in range(4)]
        told = [response.headers[DECISION].split(";")[0] for response in responses]
        assert told == ["hashed", "seen", "seen", "seen"]
        mode = "promptprefix_router_undeclared_mode"
        assert await precise.stack.metric(mode, mode="approximate") == 1
    finally:
        for engine in precise.engines:
            engine.rendering = True
    assert await precise.stack.metric(FALLBACKS, reason="invalid") == before + 4
    await precise.stack.settled()
    assert (await precise.ask(TEXT)).headers[DECISION].startswith("h")
    assert await precise.stack.metric(mode, mode="precise") == 1


async def test_a_sidecar_that_is_away_leaves_estimates(precise: Precise) -> None:
    first = await precise.ask(TEXT)
    engine = precise.named(first.json()["engine"])
    await engine.stop_feed()

    async def lost() -> bool:
        return await precise.stack.metric(PODS, state="lost") == 1

    await until(lost, "the picker knows that a feed is lost")
    # What was sent there counts: nobody has told otherwise.
    assert (await precise.ask(TEXT)).json() == first.json()
    await engine.start_feed()
    await precise.feeds(3)
    again = await precise.ask(TEXT)
    assert (again.json(), again.headers[DECISION]) == (first.json(), HELD)


async def test_the_door_of_gateways_waits_for_tokens_too(precise: Precise) -> None:
    async with AsyncExitStack() as closing:
        folder = closing.enter_context(public_folder())
        control = await FakeControl(folder).start()
        control.blocks_keys = (BlocksKey(namespace=TENANT, key=KEY.hex()),)
        closing.push_async_callback(control.stop)
        gateway = GatewayStack(folder, control, [*precise.engines])
        gateway.settings = {"UNDECLARED_MODE": "precise", "PRECISE_TIMEOUT_MS": 1500}
        closing.push_async_callback(gateway.stop)
        await gateway.start()
        endpoints = tuple(
            endpoint.model_copy(update={"blocks_port": engine.blocks_port})
            for endpoint, engine in zip(pool(precise.engines), precise.engines, strict=True)
        )
        await gateway.publish((), endpoints)

        async def heard() -> bool:
            return await gateway.metric(PODS, state="whole") == len(endpoints)

        await until(heard, "the feeds are whole")
        for way in ("buffered", "duplex"):
            body = {"model": MODEL, "prompt": f"By {way}. {TEXT}"}
            url = f"{gateway.url(way)}/v1/completions"
            first = await gateway.client.post(url, json=body)
            again = await gateway.client.post(url, json=body)
            assert again.headers[DECISION] == HELD
            assert again.json() == first.json()
