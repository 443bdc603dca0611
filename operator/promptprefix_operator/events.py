"""Events on objects, posted in the background: telling people must not hold up the work."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

import structlog

from promptprefix.resource import API_VERSION, KIND
from promptprefix_operator.api_server import ApiError, ApiServer, FencedError, Json
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.troubles import Troubles

COMPONENT = "promptprefix-operator"
MAX_WAITING = 2_048
"""Events that wait to be posted; more are dropped and counted. Many windows may open at once."""

FENCED_SECONDS = 1.0
"""A leader whose time ran out waits so long until it looks whether it may write again."""

_MESSAGE_CHARS = 1_024
_NAME_CHARS = 253
_CONFLICT = 409

EventType = Literal["Normal", "Warning"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Subject:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Notice:
    """An Event. What has a ``once`` key is posted once as long as that Event lives (an hour)."""

    subject: Subject
    type: EventType
    reason: str
    message: str
    once: str = ""


def prefix_subject(namespace: str, name: str, uid: str) -> Subject:
    """Return a PromptPrefix as a subject."""
    return Subject(API_VERSION, KIND, namespace, name, uid)


def pod_subject(namespace: str, name: str, uid: str) -> Subject:
    """Return a pod as a subject."""
    return Subject("v1", "Pod", namespace, name, uid)


class Events:
    """Posts notices one after another. ``instance`` names this process.

    ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        api: ApiServer,
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        instance: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._now = now
        self._instance = instance
        self._sleep = sleep
        self._troubles = Troubles(log, clock, "Events not posted", "Events are posted again")
        self._waiting: asyncio.Queue[Notice] = asyncio.Queue(MAX_WAITING)

    def post(self, notice: Notice) -> None:
        """Take a notice to be posted soon; drop it where too many wait."""
        try:
            self._waiting.put_nowait(notice)
        except asyncio.QueueFull:
            self._metrics.events.labels("dropped").inc()

    async def run(self) -> None:
        """Post what comes, for ever. What the API server refuses is logged and dropped.

        A leader that may not write just now keeps it: what stands is told once.
        """
        while True:
            notice = await self._waiting.get()
            while not await self._try(notice):
                await self._sleep(FENCED_SECONDS)

    async def _try(self, notice: Notice) -> bool:
        """Post a notice, or drop it; return False if this process may not write just now."""
        subject = notice.subject
        path = f"/api/v1/namespaces/{quote(subject.namespace)}/events"
        try:
            await self._api.create(path, event_of(notice, self._now(), self._instance))
        except FencedError:
            return False
        except ApiError as error:
            if error.status == _CONFLICT and notice.once:
                return True
            self._metrics.events.labels("failed").inc()
            self._troubles.failed(
                "",
                error,
                namespace=subject.namespace,
                object=subject.name,
                reason=notice.reason,
            )
            return True
        self._troubles.worked("")
        self._metrics.events.labels("posted").inc()
        return True


def event_of(notice: Notice, now: datetime, instance: str) -> Json:
    """Return the Event as the core group writes it."""
    subject = notice.subject
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _name(notice), "namespace": subject.namespace},
        "involvedObject": {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
        },
        "type": notice.type,
        "reason": notice.reason,
        "message": notice.message[:_MESSAGE_CHARS],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance[:128],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def _name(notice: Notice) -> str:
    """Return a name of the form that kubelets use: the object's and a number."""
    suffix = secrets.token_hex(8)
    if notice.once:
        key = f"{notice.subject.uid}/{notice.reason}/{notice.once}"
        suffix = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{notice.subject.name[: _NAME_CHARS - 17].rstrip('.-')}.{suffix}"
