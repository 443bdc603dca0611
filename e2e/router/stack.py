"""The real router, picker and Envoy as processes, between a fake operator and fake engines."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from e2e.exposition import total
from e2e.router.fake_control import FakeControl
from e2e.router.fake_engine import FakeEngine
from e2e.router.processes import answers, end_envoy, end_router, run_envoy, run_router
from e2e.sidecar_stand import Control
from e2e.waiting import until
from promptprefix.wire import RouteEndpoint, RoutePrefix, TenantSalt

TENANT = "ml"
TENANT_HEADER = "x-team"
MODEL = "fake/model"
DECISION_TIMEOUT_MS = 2000
SATURATED_AT = 40


def free_ports(count: int) -> list[int]:
    """Return TCP ports of loopback that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


@contextmanager
def public_folder() -> Iterator[Path]:
    """Give a folder that everybody may read: Envoy runs as nobody."""
    with tempfile.TemporaryDirectory(prefix="promptprefix-router-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@asynccontextmanager
async def surroundings() -> AsyncIterator[tuple[Path, FakeControl, list[FakeEngine]]]:
    """Give what a router needs around it: a public folder, an operator and three engines."""
    async with AsyncExitStack() as closing:
        folder = closing.enter_context(public_folder())
        control = await FakeControl(folder).start()
        closing.push_async_callback(control.stop)
        engines = [await FakeEngine(name).start() for name in ("a", "b", "c")]
        for engine in engines:
            closing.push_async_callback(engine.stop)
        yield folder, control, engines


@dataclass
class RouterStack:
    """Picker and Envoy on free ports of loopback. ``folder`` is readable by everybody."""

    folder: Path
    control: Control
    engines: list[FakeEngine]
    client: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(timeout=30.0, trust_env=False)
    )
    picker: Process | None = None
    envoy: Process | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings beside the usual ones, of picker and Envoy."""

    def __post_init__(self) -> None:
        """Choose ports."""
        ports = free_ports(6)
        self.port, self.admin_port, self.stats_port, *ports = ports
        self.rewrite_port, self.metrics_port, self.spare_port = ports

    @property
    def fake_control(self) -> FakeControl:
        """The control API, where it is a fake."""
        assert isinstance(self.control, FakeControl)
        return self.control

    @property
    def url(self) -> str:
        """Address that clients use."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def all_settings(self) -> dict[str, object]:
        """Settings of the router."""
        return {
            "TENANT": TENANT,
            "TENANT_HEADER": TENANT_HEADER,
            "CONTROL_URL": self.control.url,
            "CA_FILE": self.control.ca_file,
            "TOKEN_FILE": self.control.token_file,
            "ENVOY_DIR": self.folder,
            "ENVOY_ADMIN": f"http://127.0.0.1:{self.admin_port}",
            "LISTEN_HOST": "127.0.0.1",
            "LISTEN_PORT": self.port,
            "STATS_HOST": "127.0.0.1",
            "STATS_PORT": self.stats_port,
            "REWRITE_PORT": self.rewrite_port,
            # The tests share two cores with others; a late answer must not count as a bypass.
            "DECISION_TIMEOUT_MS": DECISION_TIMEOUT_MS,
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": self.metrics_port,
            "HEALTH_INTERVAL_S": 0.2,
            "LOAD_INTERVAL_MS": 20,
            "ENGINE_INTERVAL_MS": 50,
            "SATURATED_AT": SATURATED_AT,
            "SHEDDABLE_OBJECTIVES": "bulk,batch",
            **self.settings,
        }

    async def start(self) -> Self:
        """Write Envoy's configuration, then start both processes and wait until they serve."""
        writer = await run_router(self.all_settings, "envoy-config")
        assert await writer.wait() == 0
        await self.start_picker()
        await self.start_envoy()
        return self

    async def start_envoy(self) -> None:
        """Start Envoy and wait until it serves."""
        self.envoy = await run_envoy(self.folder / "bootstrap.json")
        health = f"{self.url}/health"
        await until(lambda: answers(self.client, health), "Envoy answers /health")

    async def stop_envoy(self) -> None:
        """End Envoy as Kubernetes does."""
        await end_envoy(self.envoy)
        self.envoy = None

    async def stop(self) -> None:
        """End both processes."""
        await self.stop_picker()
        await self.stop_envoy()
        await self.client.aclose()

    async def drain_envoy(self, seconds: float) -> None:
        """Do what the chart has a pod do before it is stopped; return when that is done."""
        work = await run_router(self.all_settings, "drain", "--seconds", str(seconds))
        assert await work.wait() == 0

    async def start_picker(self, **settings: object) -> None:
        """Start the picker, with other ``settings`` than Envoy's, and wait until it serves."""
        self.picker = await run_router({**self.all_settings, **settings}, "serve")
        health = f"http://127.0.0.1:{self.metrics_port}/healthz"
        await until(lambda: answers(self.client, health), "the picker answers /healthz")

    async def stop_picker(self) -> None:
        """End the picker as Kubernetes does."""
        await end_router(self.picker)
        self.picker = None

    async def publish(
        self,
        prefixes: tuple[RoutePrefix, ...],
        endpoints: tuple[RouteEndpoint, ...],
        tenants: tuple[TenantSalt, ...] = (),
    ) -> None:
        """Publish a route table; return when the picker and Envoy have taken it."""
        await self.fake_control.publish(prefixes, endpoints, tenants)
        wanted = {f"{e.address}:{e.port}": e.ready for e in endpoints if e.namespace == TENANT}

        async def taken() -> bool:
            return await self.pool() == wanted

        await until(taken, f"Envoy's pool is {wanted}")
        await self.resolved()

    async def resolved(self) -> None:
        """Wait until Envoy resolves names by the latest route table."""

        async def in_step() -> bool:
            if await self.metric("promptprefix_router_header_names_behind"):
                return False
            written = {
                json.loads((self.folder / name).read_bytes())["version_info"]
                for name in ("endpoints.json", "routes.json")
            }
            return written == await self._versions()

        await until(in_step, "Envoy has taken both files")

    async def _versions(self) -> set[str]:
        url = f"http://127.0.0.1:{self.admin_port}/stats"
        page = (await self.client.get(url, params={"filter": r"version_text$"})).text
        return set(re.findall(r'version_text: "(\w+)"', page))

    async def settled(self) -> None:
        """Wait until the picker's load has no picks of answered requests in it.

        The first reading after this call may have begun before; the second has not.
        """
        name = "promptprefix_router_load_readings_total"
        before = await self.metric(name, result="ok")

        async def read_twice() -> bool:
            return await self.metric(name, result="ok") >= before + 2

        await until(read_twice, "two readings of Envoy's load")

    async def pool(self) -> dict[str, bool]:
        """Return Envoy's endpoints, and whether it would choose them by itself."""
        url = f"http://127.0.0.1:{self.admin_port}/clusters?format=json"
        clusters = (await self.client.get(url)).json()["cluster_statuses"]
        hosts = next(c for c in clusters if c["name"] == "engines").get("host_statuses", [])
        return {_address(host): _chosen(host["health_status"]) for host in hosts}

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the picker; 0 if it is absent."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        return total((await self.client.get(url)).text, name, **labels)

    async def stat(self, name: str, **labels: str) -> float:
        """Return a statistic of Envoy, as Prometheus scrapes it; 0 if it is absent."""
        url = f"http://127.0.0.1:{self.stats_port}/stats/prometheus"
        return total((await self.client.get(url)).text, name, **labels)


def _address(host: dict[str, Any]) -> str:
    place = host["address"]["socket_address"]
    return f"{place['address']}:{place['port_value']}"


def _chosen(health: dict[str, Any]) -> bool:
    return health.get("eds_health_status") == "HEALTHY" and not health.get(
        "failed_active_health_check", False
    )
