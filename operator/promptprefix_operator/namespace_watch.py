"""The watch over one namespace: it starts, fails and heals without touching any other.

What was read stays in force while the namespace can't be read: pods and pins outlive a slip in the
rights. Only after the API server has refused for `FORGET_SECONDS` everything of it is dropped, as a
resource that was deleted meanwhile must not stay pinned for ever. An API server that does not
answer refuses nothing, and nothing is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.handlers import WatchEndedError
from promptprefix_operator.observation import REFUSALS, Observer
from promptprefix_operator.publication import Publication

FORGET_SECONDS = 900.0
STEADY_SECONDS = 3.0
"""A watch that has lasted this long counts as one that works."""
REMIND_SECONDS = 600.0
"""The same trouble is told again after this time."""

REMEDY = (
    "name the namespace in the chart's value namespaces, which grants list and watch of "
    "promptprefixes, pods and configmaps in it, or take it out of PROMPTPREFIX_NAMESPACES"
)

log = structlog.get_logger(__name__)


class NamespaceWatch:
    """Keeps ``cluster`` up to date about one namespace.

    ``follow`` watches until that fails; it is told what signals call. ``watched`` is told whether
    it works. ``wake`` asks for a plan. ``tried``: the namespace was read, or refused.
    """

    def __init__(
        self,
        *,
        namespace: str,
        observer: Observer,
        cluster: Cluster,
        publication: Publication,
        follow: Callable[[Callable[[], None]], Awaitable[None]],
        watched: Callable[[bool], None],
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.namespace = namespace
        self._observer = observer
        self._cluster = cluster
        self._publication = publication
        self._follow = follow
        self._watched = watched
        self._wake = wake
        self._clock = clock
        self._planned_from: int | None = None
        self._refused_since: float | None = None
        self._told: tuple[str, float] = ("", 0.0)
        self.tried = asyncio.Event()

    @property
    def known(self) -> bool:
        """Whether the published plan knows what is in the namespace.

        Before that its pods keep what they hold: an empty set would only mean that nobody looked.
        """
        return self._planned_from is not None and self._publication.passes >= self._planned_from

    @property
    def unknown(self) -> bool:
        """Whether a plan that is made now knows nothing of what is in the namespace."""
        return self._planned_from is None

    async def run(self, stop: Callable[[], None]) -> None:
        """Read and watch, for ever. ``stop`` is called by the signals that end the process."""
        backoff = Backoff()
        self._watched(False)
        while True:
            began = self._clock()
            try:
                await self._observer.read()
                self._refused_since = None
                self._settle()
                await self._work(stop)
            except (ApiError, WatchEndedError) as error:
                if self._clock() - began > REMIND_SECONDS:
                    backoff.reset()
                self._lose(error, wait := backoff.next())
            await asyncio.sleep(wait)

    async def _work(self, stop: Callable[[], None]) -> None:
        """Watch until something fails, and raise that."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell_steady())
                group.create_task(self._observer.keep_texts(self._publication.wait))
                group.create_task(self._observer.keep_fresh())
                group.create_task(self._observer.keep_swept())
                group.create_task(self._observer.keep_pools(stop, self._publication.wait))
                await self._follow(stop)
        except* (ApiError, WatchEndedError) as errors:
            raise WatchEndedError(str(errors.exceptions[0])) from errors

    async def _tell_steady(self) -> None:
        await asyncio.sleep(STEADY_SECONDS)
        self._watched(True)
        if self._told[0]:
            log.info("namespace watched again", namespace=self.namespace)
        self._told = ("", 0.0)

    def _settle(self) -> None:
        """Let the next plan speak for the namespace."""
        if self._planned_from is None:
            self._planned_from = self._publication.passes + 1
            self._wake()
        self.tried.set()

    def _lose(self, error: ApiError | WatchEndedError, wait: float) -> None:
        self._watched(False)
        now = self._clock()
        if isinstance(error, ApiError) and error.status in REFUSALS:
            self.tried.set()
            if self._refused_since is None:
                self._refused_since = now
            if now - self._refused_since >= FORGET_SECONDS:
                self._cluster.forget_namespace(self.namespace)
                self._settle()
        text = str(error)
        if self._told[0] == text and now - self._told[1] < REMIND_SECONDS:
            return
        self._told = (text, now)
        log.error(
            "namespace can't be watched",
            namespace=self.namespace,
            error=text,
            remedy=REMEDY if "forbidden" in text else "",
            retry_seconds=round(wait, 1),
        )
