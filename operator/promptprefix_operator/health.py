"""The plain HTTP port for probes and Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Role(StrEnum):
    """What a replica does."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"


@dataclass(frozen=True)
class Health:
    """What the probes are told; ``pass_age_seconds`` is None before the first plan."""

    ok: bool
    role: Role
    pass_age_seconds: float | None = None


def health_of(
    *, listening: bool, led_seconds: float | None, pass_age: float | None, limit_seconds: float
) -> Health:
    """Judge a replica.

    A standby is healthy once it listens. A leader is while its last plan, or before the first one
    its lead (``led_seconds``), is at most ``limit_seconds`` old.
    """
    if led_seconds is None:
        return Health(listening, Role.STANDBY if listening else Role.STARTING)
    age = led_seconds if pass_age is None else pass_age
    rounded = None if pass_age is None else round(pass_age, 3)
    return Health(listening and age <= limit_seconds, Role.LEADER, rounded)


def health_application(registry: CollectorRegistry, read: Callable[[], Health]) -> web.Application:
    """Return the application with ``/healthz`` (200 or 503) and ``/metrics``."""

    async def healthz(_: web.Request) -> web.Response:
        health = read()
        return web.json_response(asdict(health), status=200 if health.ok else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app
