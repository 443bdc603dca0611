"""The real picker behind its gateway door, and a real Envoy that stands for a gateway."""

from __future__ import annotations

import json
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx

from e2e.exposition import total
from e2e.router.fake_control import FakeControl
from e2e.router.fake_engine import FakeEngine
from e2e.router.gateway_envoy import WAYS, gateway_bootstrap
from e2e.router.processes import answers, end_envoy, end_router, run_envoy, run_router
from e2e.router.stack import SATURATED_AT, TENANT, free_ports
from e2e.waiting import until
from promptprefix.wire import RouteEndpoint, RoutePrefix


@dataclass
class GatewayStack:
    """Picker and Envoy on free ports of loopback. ``folder`` is readable by everybody."""

    folder: Path
    control: FakeControl
    engines: list[FakeEngine]
    client: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(timeout=30.0, trust_env=False)
    )
    settings: dict[str, object] = field(default_factory=dict)
    """More settings of the picker."""
    picker: Process | None = None
    envoy: Process | None = None

    def __post_init__(self) -> None:
        """Choose ports."""
        self.admin_port, self.gateway_port, self.metrics_port, *ways = free_ports(3 + len(WAYS))
        self.ports = {way.name: port for way, port in zip(WAYS, ways, strict=True)}

    def url(self, way: str) -> str:
        """Address that clients of the listener ``way`` use."""
        return f"http://127.0.0.1:{self.ports[way]}"

    async def start(self) -> Self:
        """Start both processes and wait until they serve."""
        await self.start_picker()
        bootstrap = gateway_bootstrap(
            self.ports,
            self.admin_port,
            self.gateway_port,
            [engine.port for engine in self.engines],
        )
        path = self.folder / "gateway.json"
        path.write_text(json.dumps(bootstrap))
        self.envoy = await run_envoy(path)
        ready = f"http://127.0.0.1:{self.admin_port}/ready"
        await until(lambda: answers(self.client, ready), "Envoy is ready")
        return self

    async def stop(self) -> None:
        """End both processes."""
        await self.stop_picker()
        await end_envoy(self.envoy)
        await self.client.aclose()

    async def start_picker(self) -> None:
        """Start the picker and wait until it has the operator's route table."""
        settings = {
            "TENANT": TENANT,
            "CONTROL_URL": self.control.url,
            "CA_FILE": self.control.ca_file,
            "TOKEN_FILE": self.control.token_file,
            "DOOR": "gateway",
            "GATEWAY_HOST": "127.0.0.1",
            "GATEWAY_PORT": self.gateway_port,
            "GATEWAY_DRAIN_S": 1,
            "ENGINE_INTERVAL_MS": 50,
            "SATURATED_AT": SATURATED_AT,
            "SHEDDABLE_OBJECTIVES": "bulk,batch",
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": self.metrics_port,
            **self.settings,
        }
        self.picker = await run_router(settings)
        ready = f"http://127.0.0.1:{self.metrics_port}/readyz"
        await until(lambda: answers(self.client, ready), "the picker answers /readyz")

    async def stop_picker(self) -> None:
        """End the picker as Kubernetes does."""
        await end_router(self.picker)
        self.picker = None

    async def publish(
        self, prefixes: tuple[RoutePrefix, ...], endpoints: tuple[RouteEndpoint, ...]
    ) -> None:
        """Publish a route table; return when the picker has taken it.

        The picker asks anew only after it has put the last answer in force.
        """
        await self.control.publish(prefixes, endpoints)

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the picker; 0 if it is absent."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        return total((await self.client.get(url)).text, name, **labels)
