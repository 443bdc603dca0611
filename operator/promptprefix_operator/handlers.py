"""What kopf calls: readings of the cluster, one daemon per resource, and the deletion.

Handlers of events only take readings in: kopf does not retry them. Work is done by level: the
daemon compares the status with the plan after each pass, the deletion asks until it may let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import kopf

from promptprefix.resource import GROUP, PLURAL, VERSION
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.controller import Controller
from promptprefix_operator.manifests import FINALIZER, uid_of
from promptprefix_operator.status_writer import EventType, StatusWriter

_PREFIX = "promptprefix.dev"
_RELEASE_WAIT_S = 5.0
_RELEASE_RETRY_S = 1.0
_EXIT_S = 1.0

Login = Callable[[], Awaitable[kopf.ConnectionInfo]]


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: nothing of a resource's text goes into its annotations."""
    settings = kopf.OperatorSettings()
    persistence = settings.persistence
    persistence.finalizer = FINALIZER
    persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_PREFIX)
    persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=_PREFIX, key="last-handled", ignored_fields=["spec", "metadata"]
    )
    settings.posting.reporting_component = "promptprefix-operator"
    settings.posting.event_name_prefix = "promptprefix-"
    settings.scanning.disabled = True  # namespaces and CRDs are given: no cluster-wide rights
    settings.watching.chunk_size = 250
    settings.networking.request_timeout = 30.0
    settings.background.instant_exit_timeout = _EXIT_S
    settings.process.ultimate_exiting_timeout = None
    return settings


def registry_of(
    *,
    login: Login,
    cluster: Cluster,
    controller: Controller,
    writer: StatusWriter,
    passed: Callable[[], Awaitable[None]],
    release_seconds: float,
) -> kopf.OperatorRegistry:
    """Return the handlers, bound to their collaborators. ``passed`` waits for the next pass."""
    registry = kopf.OperatorRegistry()
    _observe(registry, cluster)

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    async def follow(body: kopf.Body, uid: str, stopped: kopf.DaemonStopped, **_: Any) -> None:
        def emit(kind: EventType, reason: str, message: str) -> None:
            kopf.event(body, type=kind, reason=reason, message=message)

        following = asyncio.create_task(writer.follow(uid, emit, passed))
        stopping = asyncio.create_task(_stop(stopped))
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            following.cancel()
            results = await asyncio.gather(following, stopping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def release(uid: str, runtime: timedelta, **_: Any) -> None:
        left = release_seconds - runtime.total_seconds()
        try:
            async with asyncio.timeout(max(0.0, min(_RELEASE_WAIT_S, left))):
                while not controller.released(uid):
                    await passed()
        except TimeoutError:
            if left > _RELEASE_WAIT_S:
                raise kopf.TemporaryError(
                    "sidecars still hold the prefix", delay=_RELEASE_RETRY_S
                ) from None

    kopf.on.login(registry=registry)(log_in)
    kopf.daemon(GROUP, VERSION, PLURAL, id="status", registry=registry, backoff=10.0)(follow)
    kopf.on.delete(GROUP, VERSION, PLURAL, id="release", registry=registry, backoff=5.0)(release)
    return registry


def _observe(registry: kopf.OperatorRegistry, cluster: Cluster) -> None:
    async def see_resource(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] == "DELETED":
            cluster.forget_resource(uid_of(event["object"]))
        else:
            cluster.see_resource(event["object"])

    async def see_pod(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] == "DELETED":
            cluster.forget_pod(uid_of(event["object"]))
        else:
            cluster.see_pod(event["object"])

    async def see_config_map(event: kopf.RawEvent, **_: Any) -> None:
        metadata = event["object"]["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        cluster.see_config_map(key, None if event["type"] == "DELETED" else event["object"])

    kopf.on.event(GROUP, VERSION, PLURAL, id="resource", registry=registry)(see_resource)
    kopf.on.event("", "v1", "pods", id="pod", registry=registry)(see_pod)
    kopf.on.event("", "v1", "configmaps", id="config-map", registry=registry)(see_config_map)


async def _stop(stopped: kopf.DaemonStopped) -> None:
    await stopped.wait()
