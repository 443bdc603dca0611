"""The precise mode with two live vLLMs on the CPU: their events, their tokens, a real Envoy.

What the router shall know was sent past it: only the engines can have told it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.engine.server import free_port
from e2e.fake_operator import FakeOperator
from e2e.router.fake_control import FakeControl
from e2e.router.samples import DECISION
from e2e.router.stack import TENANT, TENANT_HEADER, RouterStack, public_folder
from e2e.sidecar_stand import START_S, Engine, engine_in, start_sidecar, tell
from e2e.waiting import until
from promptprefix.wire import BlocksKey, RouteEndpoint, RoutePrefix, TenantSalt

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

KEY = bytes(range(32)).hex()
SALT = "tenant-a-secret"
MODEL = "demo"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "Somebody writes to the support desk about a parcel that never came. " * 40
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_parcel",
            "description": "Finds a parcel by its number.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
    }
]
HELD = "held;match=undeclared"


def chat(*turns: str, **more: object) -> dict[str, Any]:
    """Return a chat with these turns, the user's and the assistant's."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": turn}
        for number, turn in enumerate(turns)
    ]
    return {"model": MODEL, "messages": messages, "max_tokens": 1, **more}


def completion(prompt: str) -> dict[str, Any]:
    """Return a completion."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": 1}


@dataclass
class Pod:
    """An engine with a sidecar that feeds routers."""

    engine: Engine
    blocks_port: int
    name: str

    async def send(self, path: str, body: dict[str, Any]) -> None:
        """Send a request past the router."""
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            (await client.post(f"{self.engine.url}{path}", json=body)).raise_for_status()

    async def reset(self) -> None:
        """Empty the cache; the engine tells of it with its next step."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            (await client.post(f"{self.engine.url}/reset_prefix_cache")).raise_for_status()
        await self.send(COMPLETIONS, completion("x"))

    @property
    def endpoint(self) -> RouteEndpoint:
        """Return it as the operator tells routers."""
        return RouteEndpoint(
            pod_uid=f"uid-{self.name}",
            pod=self.name,
            namespace=TENANT,
            address="127.0.0.1",
            port=self.engine.port,
            models=(MODEL,),
            ready=True,
            blocks_port=self.blocks_port,
        )


@dataclass
class Precise:
    """Two pods behind a router."""

    pods: list[Pod]
    stack: RouterStack

    async def ask(self, path: str, body: dict[str, Any], **headers: str) -> tuple[str, int, str]:
        """Return the decision, how many tokens were cached, and the pod's name."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        before = [await self._served(pod) for pod in self.pods]
        response = await self.stack.client.post(
            f"{self.stack.url}{path}", json=body, headers=names, timeout=120
        )
        response.raise_for_status()
        after = [await self._served(pod) for pod in self.pods]
        (place,) = (n for n, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1)
        details = response.json()["usage"]["prompt_tokens_details"] or {}
        cached = int(details.get("cached_tokens") or 0)
        return response.headers[DECISION], cached, self.pods[place].name

    async def _served(self, pod: Pod) -> int:
        """Return how many requests Envoy sent to a pod."""
        url = f"http://127.0.0.1:{self.stack.admin_port}/clusters?format=json"
        for cluster in (await self.stack.client.get(url)).json()["cluster_statuses"]:
            for host in cluster.get("host_statuses", []):
                # The picker's own is a socket of another kind.
                if host["address"].get("socket_address", {}).get("port_value") == pod.engine.port:
                    stats = {each["name"]: each.get("value", 0) for each in host["stats"]}
                    return int(stats["rq_total"])
        raise AssertionError(f"Envoy does not know {pod.name}")

    async def blocks(self) -> float:
        """Return how many names the router has."""
        return await self.stack.metric("promptprefix_router_precise_blocks")

    async def reset(self, pods: Sequence[Pod]) -> None:
        """Empty the caches of those that hold anything; return when the router knows of it."""
        for each in pods:
            await each.reset()

        async def forgotten() -> bool:
            return await self.blocks() == 0

        await until(forgotten, "the router knows of the resets")

    async def told(self, more_than: float) -> None:
        """Wait until the router knows more names."""

        async def more() -> bool:
            return await self.blocks() > more_than

        await until(more, "the router knows what the engine stored")


@contextlib.asynccontextmanager
async def pod(name: str, folder: Path) -> AsyncIterator[Pod]:
    """Run an engine and its sidecar; both are still starting when this returns."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    flags = ("--kv-events-config", json.dumps(config))
    operator = FakeOperator(folder, blocks_key=KEY, pod_uid=f"uid-{name}")
    port = free_port()
    with engine_in(folder, plugin=False, extra=flags, VLLM_SERVER_DEV_MODE="1") as engine:
        async with operator.serving():
            await operator.want(())
            process, _ = start_sidecar(
                folder,
                operator,
                engine,
                PROMPTPREFIX_KV_EVENTS_ENDPOINT=f"ipc://{folder}/events",
                PROMPTPREFIX_KV_EVENTS_REPLAY_ENDPOINT=f"ipc://{folder}/replay",
                PROMPTPREFIX_KV_EVENTS_TOPIC="kv",
                PROMPTPREFIX_BLOCKS_PORT=str(port),
            )
            try:
                await operator.until(lambda state: state.engine.blocks_port == port, START_S)
                await operator.until(lambda state: state.engine.healthy, START_S)
                yield Pod(engine, port, name)
            finally:
                process.terminate()
                process.wait(10)
                tell((folder / "sidecar.log").read_text()[-2000:])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def precise(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Precise]:
    """Start all; the router in the precise mode."""
    async with AsyncExitStack() as closing:
        pods = [
            await closing.enter_async_context(pod(name, tmp_path_factory.mktemp(name)))
            for name in ("a", "b")
        ]
        folder = closing.enter_context(public_folder())
        control = await FakeControl(folder).start()
        control.blocks_keys = (BlocksKey(namespace=TENANT, key=KEY),)
        closing.push_async_callback(control.stop)
        stack = RouterStack(folder / "envoy", control, [])
        closing.push_async_callback(stack.stop)
        await stack.start()
        await stack.stop_picker()
        await stack.start_picker(UNDECLARED_MODE="precise", PRECISE_TIMEOUT_MS=1800)
        prefix = RoutePrefix(
            name="p", tenant=TENANT, model=MODEL, fingerprint="x", salt=SALT, owner="team-a"
        )
        tenants = (TenantSalt(namespace=TENANT, tenant="team-a", salt=SALT),)
        await stack.publish((prefix,), tuple(each.endpoint for each in pods), tenants)

        async def whole() -> bool:
            name = "promptprefix_router_precise_pods"
            return await stack.metric(name, state="whole") == len(pods)

        await until(whole, "both feeds are whole")
        yield Precise(pods, stack)


async def test_the_next_turn_lands_where_the_talk_is_until_that_cache_is_reset(
    precise: Precise,
) -> None:
    talk = precise.pods[1]
    before = await precise.blocks()
    await talk.send(CHAT, chat(TEXT))
    await precise.told(before)
    decision, cached, name = await precise.ask(CHAT, chat(TEXT, "Which one?", "The blue one."))
    assert (decision, name) == (HELD, talk.name)
    assert cached > 300
    await precise.reset([talk])
    decision, cached, _ = await precise.ask(CHAT, chat(TEXT, "Which one?", "The red one."))
    assert decision == "hashed;match=undeclared"
    assert cached == 0


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(f"With tools. {TEXT}", tools=TOOLS)),
        (CHAT, chat(f"With options. {TEXT}", chat_template_kwargs={"enable_thinking": False})),
        (CHAT, chat(f"With effort. {TEXT}", reasoning_effort="low")),
        (COMPLETIONS, completion(f"A completion. {TEXT}")),
    ],
    ids=["tools", "options", "effort", "completion"],
)
async def test_the_tokens_are_those_that_the_engine_computes(
    precise: Precise, path: str, body: dict[str, Any], place: int
) -> None:
    await precise.reset(precise.pods)
    await precise.pods[place].send(path, body)
    await precise.told(0)
    decision, cached, name = await precise.ask(path, body)
    assert (decision, name) == (HELD, precise.pods[place].name)
    assert cached > 300


async def test_a_tenants_salt_is_part_of_what_is_held(precise: Precise) -> None:
    holder = precise.pods[0]
    before = await precise.blocks()
    await holder.send(CHAT, chat(f"Salted. {TEXT}", cache_salt=SALT))
    await precise.told(before)
    body = chat(f"Salted. {TEXT}")
    decision, cached, name = await precise.ask(CHAT, body, **{TENANT_HEADER: "team-a"})
    assert (decision, name) == (HELD, holder.name)
    assert cached > 300
    decision, cached, _ = await precise.ask(CHAT, body)
    assert (decision, cached) == ("hashed;match=undeclared", 0)


async def test_nothing_fell_back(precise: Precise) -> None:
    name = "promptprefix_router_precise_fallbacks_total"
    assert await precise.stack.metric(name) == 0
    assert await precise.stack.metric("promptprefix_router_precise_decisions_total") > 0
