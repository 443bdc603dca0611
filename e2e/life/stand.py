"""All but a node: a real API server, the operator, and pods that are an engine and a sidecar.

Each pod is an object that no node runs; its engine (vLLM on the CPU) and its sidecar are processes
of this machine. The sidecar proves the pod with a token that is bound to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from e2e import waiting
from e2e.cluster import Cluster
from e2e.engine.server import free_port
from e2e.engine.token_prompts import tokens
from e2e.operator_stand import (
    SYSTEM,
    Operator,
    apply,
    conditions,
    get,
    make_pod,
    manifest,
    operator,
    pod_token,
    token,
)
from e2e.router.stack import RouterStack, public_folder
from e2e.sidecar_stand import START_S, Engine, engine_in, sidecar_metric, start_sidecar
from promptprefix.wire import AUDIENCE

Json = dict[str, Any]

WAIT_S = 60.0
LOOPBACK = "127.0.0.1"
ENGINE_SETTINGS = {"VLLM_SERVER_DEV_MODE": "1", "PROMPTPREFIX_PIN_BUDGET": "0.5"}
"""Development mode opens what only tests use: cache reset, sleep and wake."""
VERSION_IDLE_S = 30
"""Twice as long as matches may take to be told."""
OPERATOR_SETTINGS = {"VERSION_IDLE_SECONDS": str(VERSION_IDLE_S), "RESYNC_SECONDS": "5"}


@dataclass
class Pod:
    """A pod's engine and sidecar. As a `Control` it says how its sidecar finds the operator."""

    name: str
    folder: Path
    engine: Engine
    url: str
    ca_file: Path
    sidecar: subprocess.Popen[bytes] | None = None
    sidecar_port: int = 0

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def start_sidecar(self) -> None:
        self.sidecar, self.sidecar_port = start_sidecar(self.folder, self, self.engine)

    def kill_sidecar(self) -> None:
        assert self.sidecar is not None
        self.sidecar.kill()
        self.sidecar.wait(10)

    def log(self) -> str:
        return (self.folder / "sidecar.log").read_text()

    async def metric(self, name: str, /, **labels: str) -> float:
        """Return the sum of the sidecar's series of that name and these labels."""
        return await sidecar_metric(self.sidecar_port, name, **labels)

    async def post(self, path: str, body: Json | None = None) -> Json:
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            answer = await client.post(f"{self.engine.url}{path}", json=body)
        answer.raise_for_status()
        found: Json = answer.json() if answer.content else {}
        return found

    async def cached_tokens(self, text: str, user: str, **more: Any) -> int:
        """Send a user's request with that system text; return how much of it was cached."""
        answer = await self.post("/v1/chat/completions", chat(text, user, **more))
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)

    async def press(self) -> None:
        """Send other traffic of three times the cache's size."""
        for number in range(6):
            body = {"model": "demo", "prompt": tokens(number, 2048), "max_tokens": 1}
            await self.post("/v1/completions", body)


@dataclass(frozen=True)
class RouterAccount:
    """How the router finds the operator, as a `Control`."""

    url: str
    ca_file: Path
    token_file: Path


def chat(text: str, user: str, **more: Any) -> Json:
    """Return the body of a chat request as a client sends it."""
    messages = [{"role": "system", "content": text}, {"role": "user", "content": user}]
    return {"model": "demo", "messages": messages, "max_tokens": 1, **more}


@dataclass
class Life:
    """The stand. Operator, engines and sidecars can be ended and started again one by one."""

    server: Cluster
    folder: Path
    pods: list[Pod] = field(default_factory=list)
    running: Operator | None = None
    _lines: list[Json] = field(default_factory=list)
    _operator: AsyncExitStack = field(default_factory=AsyncExitStack)
    _engines: AsyncExitStack = field(default_factory=AsyncExitStack)
    control_port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.control_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    async def start_operator(self) -> Operator:
        """Start it on the port that sidecars know, and keep the CA that it published."""
        settings = OPERATOR_SETTINGS | {"LISTEN_PORT": str(self.control_port)}
        self.running = await self._operator.enter_async_context(
            operator(self.server, self.folder, **settings)
        )
        authority = get(self.server, "configmap", "promptprefix-ca")["data"]["ca.crt"]
        self.ca_file.write_text(authority)
        return self.running

    @property
    def lines(self) -> list[Json]:
        """Logs of the operator that runs, and of those before it."""
        return self._lines + (self.running.lines if self.running is not None else [])

    async def stop_operator(self) -> None:
        """End it; it must end well."""
        await self._operator.aclose()
        self._lines = self.lines
        self.running = None

    async def add_pod(self, name: str, labels: Mapping[str, str] | None = None) -> Pod:
        """Start a pod's engine and sidecar; return when the engine answers."""
        make_pod(self.server, name, LOOPBACK, labels)
        place = self.folder / name
        place.mkdir()
        engine = self._engines.enter_context(engine_in(place, plugin=True, **ENGINE_SETTINGS))
        pod = Pod(name, place, engine, self.url, self.ca_file)
        pod.token_file.write_text(pod_token(self.server, name))
        pod.start_sidecar()
        self._engines.callback(pod.kill_sidecar)
        self.pods.append(pod)
        await self.until_healthy(pod)
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """End a pod's processes and delete it."""
        pod.kill_sidecar()
        pod.engine.kill()
        delete = ("delete", "pod", pod.name, "-n", "ml", "--grace-period=0", "--force")
        self.server.kubectl(*delete)
        self.pods.remove(pod)

    async def until_healthy(self, pod: Pod) -> None:
        async def healthy() -> bool:
            return await pod.metric("engine_healthy") == 1

        await until(healthy, f"{pod.name}: the engine is healthy", START_S)

    async def until_unpinned(self, pod: Pod) -> None:
        async def unpinned() -> bool:
            return await pod.metric("pinned_blocks") == 0

        await until(unpinned, f"{pod.name}: nothing is pinned")

    def router_token(self) -> Path:
        """Return a file with the token of the router's account."""
        place = self.folder / "router-token"
        place.write_text(
            token(self.server, SYSTEM, "promptprefix-router", f"--audience={AUDIENCE}")
        )
        return place

    @contextlib.asynccontextmanager
    async def router(self) -> AsyncIterator[RouterStack]:
        """Run picker and Envoy in front of the pods."""
        with public_folder() as folder:
            control = RouterAccount(self.url, self.ca_file, self.router_token())
            stack = RouterStack(folder / "envoy", control, [])
            try:
                yield await stack.start()
            finally:
                await stack.stop()

    async def close(self) -> None:
        """End everything that was started."""
        try:
            await self._operator.aclose()
        finally:
            await self._engines.aclose()

    def apply(self, name: str, text: str, **spec: Any) -> None:
        apply(self.server, manifest(name, text, **spec))

    def annotate(self, name: str, *pairs: str) -> None:
        self.server.kubectl("annotate", "pp", name, "-n", "ml", "--overwrite", *pairs)

    def delete(self, *names: str) -> None:
        self.server.kubectl("delete", "pp", *names, "-n", "ml", "--timeout=10s")

    def status(self, name: str) -> Json:
        found: Json = get(self.server, "promptprefix", name).get("status", {})
        return found

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        found = conditions(self.server, name).get(kind, {})
        return found.get("status", ""), found.get("reason", "")

    def told(self, name: str, kind: str) -> str:
        """Return the message of a condition."""
        return str(conditions(self.server, name).get(kind, {}).get("message", ""))

    async def until(
        self, name: str, kind: str, wanted: tuple[str, str], within: float = WAIT_S
    ) -> None:
        """Return when a condition has this status and reason."""

        async def holds() -> bool:
            return self.condition(name, kind) == wanted

        try:
            await until(holds, f"{name}: {kind} is {wanted}", within)
        except AssertionError as error:
            shown = json.dumps(self.status(name), indent=1)
            raise AssertionError(f"{error}\n{shown}") from None


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, within: float = WAIT_S
) -> None:
    """Return when the condition holds; while what it asks does not answer, it does not hold."""

    async def holds() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return await condition()
        return False

    await waiting.until(holds, what, within, 0.2)


@contextlib.asynccontextmanager
async def life(server: Cluster, folder: Path) -> AsyncIterator[Life]:
    """Open the stand with one pod, ``vllm-0``."""
    stand = Life(server, folder)
    try:
        await stand.start_operator()
        await stand.add_pod("vllm-0")
        yield stand
    finally:
        try:
            await stand.close()
        finally:
            for pod in stand.pods:
                print(f"--- sidecar of {pod.name}\n{pod.log()[-4000:]}")
            print("--- operator", *map(json.dumps, stand.lines[-40:]), sep="\n")


def instant(text: str) -> float:
    """Return an RFC 3339 instant as Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


async def sleep_until(moment: float) -> None:
    """Return at a Unix time: what is tested happens by the clock alone."""
    await asyncio.sleep(max(0.0, moment - time.time()))
