"""The plain HTTP port for probes and Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


def health_application(
    registry: CollectorRegistry, pass_age: Callable[[], float | None], limit_seconds: float
) -> web.Application:
    """Return the application with ``/healthz`` and ``/metrics``.

    Healthy means that the last successful pass is at most ``limit_seconds`` old.
    """

    async def healthz(_: web.Request) -> web.Response:
        age = pass_age()
        healthy = age is not None and age <= limit_seconds
        body = {"ok": healthy, "pass_age_seconds": None if age is None else round(age, 3)}
        return web.json_response(body, status=200 if healthy else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app
