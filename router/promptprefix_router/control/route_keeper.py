"""Puts a new route table in force: where Envoy reads it first, then in the picker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from promptprefix.wire import RouteTable
from promptprefix_router.control.routes import Routes
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

EMPTY_GRACE_S = 60.0
"""How long an empty pool must last before it replaces one with endpoints.

An operator that just started knows no pods until their sidecars have connected. An empty pool
serves nobody, so waiting costs nothing.
"""


class PublishedPool(Protocol):
    """Where the route table in force is kept."""

    @property
    def empty(self) -> bool:
        """Whether it has no endpoint."""

    def publish(self, routes: Routes) -> bool:
        """Put ``routes`` in force; return whether the endpoints changed. Raises `OSError`."""


class RouteKeeper:
    """Holds the last known state; an empty pool replaces it only after a while.

    Where the operator can't read the namespace it stays for as long as that lasts. ``follow`` is
    told of each table in force after the picker.
    """

    def __init__(
        self,
        picker: Picker,
        pool: PublishedPool,
        metrics: RouterMetrics,
        tenant: str,
        clock: Callable[[], float],
        follow: Callable[[Routes], None] = lambda _: None,
    ) -> None:
        self._picker = picker
        self._pool = pool
        self._metrics = metrics
        self._tenant = tenant
        self._clock = clock
        self._follow = follow
        self._held: Routes | None = None
        self._held_since = 0.0
        self._unknown = False
        self._log = structlog.get_logger("routes")

    def accept(self, table: RouteTable) -> None:
        """Take a table that the operator sent. Raises `OSError` if it can't be published."""
        if self._tenant in table.unknown:
            self._know_nothing()
            return
        self._unknown = False
        routes = Routes.from_table(table, self._tenant)
        if routes.endpoints or self._pool.empty:
            self._publish(routes)
            return
        if self._held is None:
            self._held_since = self._clock()
            self._log.warning("empty pool held back", seconds=EMPTY_GRACE_S)
        self._held = routes
        self.confirm()

    def confirm(self) -> None:
        """Note that the operator's table is unchanged. Raises `OSError` like `accept`."""
        if self._unknown:
            return
        if self._held is not None and self._clock() - self._held_since >= EMPTY_GRACE_S:
            self._publish(self._held)
        self._metrics.confirmed()

    def _know_nothing(self) -> None:
        """Keep what is in force, unconfirmed: its age tells how old it is."""
        if not self._unknown:
            self._log.warning("operator can't read the namespace, the last routes stay")
        self._unknown, self._held = True, None

    def _publish(self, routes: Routes) -> None:
        changed = self._pool.publish(routes)
        self._picker.use(routes)
        self._follow(routes)
        self._held = None
        self._metrics.published(routes)
        self._metrics.confirmed()
        if changed:
            ready = sum(endpoint.ready for endpoint in routes.endpoints)
            self._log.info(
                "endpoints changed",
                known=len(routes.endpoints),
                ready=ready,
                rejected=routes.rejected,
            )
