"""Writes a resource's status when it differs, and tells the transition as Event and log line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import structlog

from promptprefix.reasons import ConditionType, Reason
from promptprefix.resource import (
    API_VERSION,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    Condition,
    PromptPrefixStatus,
)
from promptprefix_operator.allowance import Allowance
from promptprefix_operator.api_server import ApiError, ApiServer
from promptprefix_operator.backoff import Backoff, Pause
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.controller import Controller
from promptprefix_operator.events import Events, Notice, prefix_subject
from promptprefix_operator.manifests import Resource, uid_of
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.troubles import Troubles

FIELD_MANAGER = "promptprefix-operator"
PROGRESS_SECONDS = 120.0
"""Counts that move while no condition does are written no sooner after the last write.

A resource that warms on many pods would otherwise be written once for each of them; metrics tell
at any time how far it is.
"""

WHY_BURST = 2
WHY_SECONDS = PROGRESS_SECONDS
"""Why a prefix has too few pods is written so often at once, and then once in so many seconds.

It changes with every other prefix that is warmed and every pod that comes or goes; but what its
size turned out to be must not wait.
"""

WRITE_BURST = 12
WRITE_SECONDS = 10.0
"""A resource's status is written so often at once, and then once in so many seconds.

No honest course of things comes near it; a pod that lies, or an engine that comes and goes, would
else cause a write at each pass.
"""

EVENT_BURST = 20
EVENT_SECONDS = 60.0
"""The same for its Events, which live on for an hour each."""

_NOT_FOUND = 404
_CONCURRENT_WRITES = 16

_PROGRESS = (Reason.WARMING, Reason.RECONCILING, Reason.RELEASING, Reason.SUSPENDED)
_FAR = (*_PROGRESS, Reason.ENGINE_NOT_HEALTHY)
"""Reasons whose message says how far it is."""
_SHORT = (Reason.BUDGET_EXCEEDED, Reason.INSUFFICIENT_PODS)
"""Reasons whose message tells of others."""

log = structlog.get_logger(__name__)


class StatusWriter:
    """Brings the status of resources in line with the plan."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: Cluster,
        controller: Controller,
        events: Events,
        metrics: Metrics,
        clock: Callable[[], float],
        rewrite_seconds: float,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._controller = controller
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._rewrite_seconds = rewrite_seconds
        self._slots = asyncio.Semaphore(_CONCURRENT_WRITES)
        self._pause = Pause(clock)
        self._troubles = Troubles(log, clock, "statuses not written", "statuses are written again")

    async def follow(self, uid: str, passed: Callable[[], Awaitable[None]]) -> None:
        """Keep one resource's status up to date, for ever.

        A write that the API server does not reflect (a field pruned, somebody else's writing) is
        repeated only after ``rewrite_seconds``; one of a resource that turns out to be gone is not.
        """
        try:
            await self._follow(uid, passed)
        finally:
            self._troubles.worked(uid)

    async def _follow(self, uid: str, passed: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff()
        writes = Allowance(self._clock, WRITE_BURST, WRITE_SECONDS)
        told = Allowance(self._clock, EVENT_BURST, EVENT_SECONDS)
        whys = Allowance(self._clock, WHY_BURST, WHY_SECONDS)
        written: PromptPrefixStatus | None = None
        written_at = 0.0
        while True:
            resource, wanted = self._cluster.resources.get(uid), self._controller.status(uid)
            if resource is None or wanted is None or wanted == resource.status:
                await passed()
                continue
            rest = 0.0 if written is None else self._rest(wanted, written, written_at, whys)
            if (rest := max(rest, writes.wait, self._pause.wait)) > 0:
                await _within(passed, rest)
                continue
            try:
                async with self._slots:
                    if self._pause.wait > 0:
                        continue
                    if not await self._write(resource, wanted):
                        written, written_at = wanted, self._clock()
                        continue
            except ApiError as error:
                self._fail(resource, error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._pause.worked()
            self._troubles.worked(uid)
            writes.take()
            if written is not None and _explains(wanted, written):
                whys.take()
            self._metrics.status_writes.labels("written").inc()
            if (notice := _transition(resource, wanted, written)) is not None and told.take():
                self._events.post(notice)
            written, written_at = wanted, self._clock()

    def _rest(
        self,
        wanted: PromptPrefixStatus,
        written: PromptPrefixStatus,
        written_at: float,
        whys: Allowance,
    ) -> float:
        """Return in how many seconds ``wanted`` may be written after ``written``."""
        if _timeless(wanted) == _timeless(written):
            patience = self._rewrite_seconds
        elif _explains(wanted, written):
            return whys.wait
        elif _verdicts(wanted) == _verdicts(written):
            patience = PROGRESS_SECONDS
        else:
            return 0.0
        return written_at + patience - self._clock()

    def _fail(self, resource: Resource, error: ApiError) -> None:
        self._metrics.status_writes.labels("failed").inc()
        if error.away:
            self._pause.failed()
        self._troubles.failed(
            resource.uid, error, namespace=resource.namespace, prefix=resource.name
        )

    async def _write(self, resource: Resource, status: PromptPrefixStatus) -> bool:
        """Write a status and return whether there was a resource to write it to."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,  # never the status of a namesake that came after it
            },
            "status": status.model_dump(
                mode="json", exclude_none=True
            ),  # null is no value of a field
        }
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path = f"{_path(resource)}/{quote(resource.name)}/status"
        try:
            answer = await self._api.patch(path, body, "application/apply-patch+yaml", query)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            await self._look_for(resource)
            return False
        if resource.uid in self._cluster.resources:  # what went meanwhile does not come back
            self._cluster.see_resource(answer)
        return True

    async def _look_for(self, resource: Resource) -> None:
        """Forget a resource that is gone: its deletion was missed, or is told later.

        "Not found" alone is no proof: a CRD that is served without statuses answers the same.
        """
        found = await self._api.get(
            _path(resource), {"fieldSelector": f"metadata.name={resource.name}"}
        )
        if resource.uid not in {uid_of(each) for each in found.get("items") or ()}:
            self._cluster.forget_resource(resource.uid)


def _path(resource: Resource) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quote(resource.namespace)}/{PLURAL}"


def _transition(
    resource: Resource, status: PromptPrefixStatus, written: PromptPrefixStatus | None
) -> Notice | None:
    """Log how readiness has changed and return the Event that tells it; None if it has not."""
    before = _ready(written or resource.status)
    after = _ready(status)
    if after is None or (before is not None and _key(before) == _key(after)):
        return None
    stalled = any(c.type == ConditionType.STALLED and c.status == "True" for c in status.conditions)
    normal = after.status == "True" or (after.reason in _PROGRESS and not stalled)
    _logger(resource).info(after.message, reason=after.reason, ready=after.status)
    subject = prefix_subject(resource.namespace, resource.name, resource.uid)
    return Notice(subject, "Normal" if normal else "Warning", after.reason, after.message)


async def _within(passed: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Return after the next pass, or after ``seconds`` if there is none."""
    try:
        async with asyncio.timeout(seconds):
            await passed()
    except TimeoutError:
        pass


def _verdicts(status: PromptPrefixStatus) -> object:
    """Return what is told of the resource without how far it is.

    The message of `Active` is no progress: it tells people on call what became of an order. Nor is
    why a prefix is not Ready, where that is neither a matter of time nor of others.
    """
    conditions = [
        (each.type, each.status, each.reason, each.observedGeneration) for each in status.conditions
    ]
    active = [each.message for each in status.conditions if each.type == ConditionType.ACTIVE]
    ready, moving = _ready(status), (*_FAR, *_SHORT)
    why = ready.message if ready and ready.status != "True" and ready.reason not in moving else ""
    hours = (status.activeWindow, status.nextTransitionTime)
    versions = [each.id for each in status.versions]
    return status.fingerprint, versions, conditions, active, why, hours


def _explains(wanted: PromptPrefixStatus, written: PromptPrefixStatus) -> bool:
    """Whether of the verdicts only what other prefixes and pods have to do with them differs."""
    one, other = _ready(wanted), _ready(written)
    if one is None or other is None or one.reason not in _SHORT or one.message == other.message:
        return False
    return _verdicts(wanted) == _verdicts(written)


def _timeless(status: PromptPrefixStatus) -> PromptPrefixStatus:
    """Return the status without times: these move on where nobody keeps the conditions."""
    conditions = [c.model_copy(update={"lastTransitionTime": None}) for c in status.conditions]
    return status.model_copy(update={"conditions": conditions})


def _ready(status: PromptPrefixStatus | None) -> Condition | None:
    found = (c for c in status.conditions if c.type == ConditionType.READY) if status else ()
    return next(iter(found), None)


def _key(condition: Condition) -> tuple[str, str]:
    return condition.status, condition.reason


def _logger(resource: Resource) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = log.bind(
        namespace=resource.namespace, prefix=resource.name
    )
    return bound
