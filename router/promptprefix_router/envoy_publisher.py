"""Keeps the files from which Envoy takes its endpoints and routes in step with the route table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from promptprefix_router.endpoints_file import EndpointsFile
from promptprefix_router.header_plan import HeaderPlan, plan_headers
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.routes import Routes
from promptprefix_router.routes_file import RoutesFile

PAUSE_S = 0.5
PAUSE_PER_ROUTE_S = 0.001
"""Envoy reads all routes again when one changes: the more there are, the longer the pause."""


class EnvoyPublisher:
    """Publishes endpoints at once, and who is warm for what at a pace that Envoy can bear.

    Until then a warm pod is one that was warm before, at worst; a name that Envoy doesn't know yet
    is resolved by the picker. What no pod could answer by the plan in force is published at once.
    """

    def __init__(
        self,
        endpoints: EndpointsFile,
        routes: RoutesFile,
        metrics: RouterMetrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoints_file = endpoints
        self._routes_file = routes
        self._metrics = metrics
        self._sleep = sleep
        self._routes = Routes()
        self._plan: HeaderPlan | None = None
        self._behind = asyncio.Event()
        self._log = structlog.get_logger("envoy")

    @property
    def empty(self) -> bool:
        """Whether Envoy knows no endpoint."""
        return self._endpoints_file.empty

    @property
    def plan(self) -> HeaderPlan | None:
        """What Envoy resolves alone, as far as this picker has told it."""
        return self._plan

    def publish(self, routes: Routes) -> bool:
        """Publish a route table; return whether the endpoints changed. Raises `OSError`."""
        plan = plan_headers(routes)
        self._routes = routes
        if self._plan is None or _serves_more(plan, self._plan, routes):
            return self._put(plan)
        self._fall_behind(plan != self._plan)
        return self._endpoints_file.write(routes.endpoints, self._plan.groups_of)

    async def run(self, before: Callable[[], Awaitable[object]]) -> None:
        """Catch up for ever; ``before`` is awaited each time before names change."""
        while True:
            await self._behind.wait()
            await before()
            plan = plan_headers(self._routes)
            try:
                self._put(plan)
            except OSError as error:
                self._log.error("Envoy's files can't be written", error=str(error))
            await self._sleep(PAUSE_S + PAUSE_PER_ROUTE_S * len(plan.routes))

    def _put(self, plan: HeaderPlan) -> bool:
        """Write endpoints before routes: a route names no group that Envoy hasn't heard of."""
        changed = self._endpoints_file.write(self._routes.endpoints, plan.groups_of)
        self._routes_file.write(plan.routes)
        self._plan = plan
        self._fall_behind(False)
        self._metrics.resolved_by_envoy(len(plan.routes))
        return changed

    def _fall_behind(self, behind: bool) -> None:
        self._metrics.names_behind(behind)
        if behind:
            self._behind.set()
        else:
            self._behind.clear()


def _serves_more(plan: HeaderPlan, than: HeaderPlan, routes: Routes) -> bool:
    """Return whether ``plan`` has a ready pod for a name for which the other has none."""
    missing = than.unserved(routes.endpoints)
    return bool(missing) and not missing <= plan.unserved(routes.endpoints)
