"""Keeps the files from which Envoy takes its endpoints and routes in step with the route table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from promptprefix_router.control.routes import Endpoint, Routes
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.header_plan import HeaderPlan, plan_headers
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.metrics import RouterMetrics

PAUSE_S = 0.5
PAUSE_PER_ROUTE_S = 0.001
"""Envoy reads all routes again when one changes: the more there are, the longer the pause."""


class Aside(Protocol):
    """Runs a function beside the event loop: with thousands of names a plan takes a while."""

    def __call__(
        self, function: Callable[[Routes], _Draft], routes: Routes, /
    ) -> Awaitable[_Draft]:
        """Return what ``function`` returns."""


class EnvoyPublisher:
    """Publishes endpoints at once, and who is warm for what at a pace that Envoy can bear.

    Until then a warm pod is one that was warm before, at worst; a name that Envoy doesn't know yet
    is resolved by the picker. If a name lost all its pods, or got a salt or an owner, that is
    published at once.
    """

    def __init__(
        self,
        endpoints: EndpointsFile,
        routes: RoutesFile,
        metrics: RouterMetrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        self._endpoints_file = endpoints
        self._routes_file = routes
        self._metrics = metrics
        self._sleep = sleep
        self._aside = aside
        self._routes = Routes()
        self._plan: HeaderPlan | None = None
        self._unserved: frozenset[str] = frozenset()
        self._behind = asyncio.Event()
        self._former: Mapping[str, tuple[str, ...]] = {}
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
        self._routes = routes
        if self._plan is None or self._overtaken(self._plan, routes):
            changed = self._put(self._draft(routes))
            self._fall_behind(True)
            return changed
        self._fall_behind(True)
        return self._endpoints_file.write(routes.endpoints, self._groups_of)

    def _overtaken(self, plan: HeaderPlan, routes: Routes) -> bool:
        """Return whether Envoy must not go on by ``plan`` for another moment."""
        return plan.revoked(routes) or bool(plan.unserved(routes.endpoints) - self._unserved)

    async def run(self, before: Callable[[], Awaitable[object]]) -> None:
        """Catch up for ever; ``before`` is awaited each time before names may change."""
        while True:
            await self._behind.wait()
            await before()
            in_force = self._plan
            draft = await self._aside(self._draft, self._routes)
            if self._plan is not in_force or draft.plan.revoked(self._routes):
                continue
            try:
                self._put(draft)
                former = self._former
                await self._sleep(PAUSE_S + PAUSE_PER_ROUTE_S * len(draft.plan.routes))
                if self._former is former:
                    self._former = {}
                    self._endpoints_file.write(self._routes.endpoints, self._groups_of)
            except OSError as error:
                self._fall_behind(True)
                self._log.error("Envoy's files can't be written", error=str(error))
                await self._sleep(PAUSE_S)

    def _put(self, draft: _Draft) -> bool:
        """Write endpoints, then routes: at no time a route names a group that no pod has.

        So the former groups stay until Envoy has had time to take the routes.
        """
        plan, endpoints = draft.plan, self._routes.endpoints
        self._former = self._endpoints_file.groups()

        def old_and_new(endpoint: Endpoint) -> tuple[str, ...]:
            return _merged(self._former.get(endpoint.address, ()), plan.groups_of(endpoint))

        changed = self._endpoints_file.write(endpoints, old_and_new)
        self._routes_file.write(draft.content)
        self._plan = plan
        self._unserved = plan.unserved(endpoints)
        self._metrics.resolved_by_envoy(len(plan.routes))
        self._fall_behind(draft.routes is not self._routes)
        return changed

    def _groups_of(self, endpoint: Endpoint) -> tuple[str, ...]:
        planned = self._plan.groups_of(endpoint) if self._plan is not None else ()
        return _merged(self._former.get(endpoint.address, ()), planned)

    def _fall_behind(self, behind: bool) -> None:
        self._metrics.names_behind(behind)
        if behind:
            self._behind.set()
        else:
            self._behind.clear()

    def _draft(self, routes: Routes) -> _Draft:
        plan = plan_headers(routes)
        return _Draft(routes, plan, self._routes_file.render(plan.routes))


def _merged(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*some, *others}))


@dataclass(frozen=True, slots=True)
class _Draft:
    routes: Routes
    plan: HeaderPlan
    content: bytes
