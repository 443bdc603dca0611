"""What kopf calls, and how it is run: as a watcher of one namespace that writes nothing.

Handlers of events only take readings in. There are no others, so kopf neither patches an object
nor holds a deletion back.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import kopf

from promptprefix.resource import GROUP, PLURAL, VERSION
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.manifests import uid_of
from promptprefix_operator.sources import (
    POOL_GROUP,
    POOL_PLURAL,
    POOL_VERSION,
    Source,
    SourceKind,
    absent,
    read_source,
)

_NO_FINALIZER = "promptprefix.dev/never-set"
"""Kopf takes the finalizer of this name off whatever it sees; nothing has it."""

Login = Callable[[], Awaitable[kopf.ConnectionInfo]]


class WatchEndedError(Exception):
    """A watch can't go on."""


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = _NO_FINALIZER
    settings.posting.enabled = False
    settings.scanning.disabled = True  # namespaces and CRDs are given: no cluster-wide rights
    settings.watching.chunk_size = 250
    settings.networking.request_timeout = 30.0
    settings.process.ultimate_exiting_timeout = None
    return settings


def registry_of(login: Login, cluster: Cluster) -> kopf.OperatorRegistry:
    """Return the handlers of a namespace, bound to their collaborators."""
    registry = _empty_registry(login)

    async def see_resource(event: kopf.RawEvent, **_: object) -> None:
        if event["type"] == "DELETED":
            cluster.forget_resource(uid_of(event["object"]))
        else:
            cluster.see_resource(event["object"])

    async def see_pod(event: kopf.RawEvent, **_: object) -> None:
        if event["type"] == "DELETED":
            cluster.forget_pod(uid_of(event["object"]))
        else:
            cluster.see_pod(event["object"])

    see_config_map = _seen(SourceKind.CONFIG_MAP, cluster)
    kopf.on.event(GROUP, VERSION, PLURAL, id="resource", registry=registry)(see_resource)
    kopf.on.event("", "v1", "pods", id="pod", registry=registry)(see_pod)
    kopf.on.event("", "v1", "configmaps", id="config-map", registry=registry)(see_config_map)
    return registry


def pool_registry_of(login: Login, cluster: Cluster) -> kopf.OperatorRegistry:
    """Return the handler of InferencePools, whose watch may fail without any other."""
    registry = _empty_registry(login)
    see_pool = _seen(SourceKind.POOL, cluster)
    kopf.on.event(POOL_GROUP, POOL_VERSION, POOL_PLURAL, id="pool", registry=registry)(see_pool)
    return registry


def _empty_registry(login: Login) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def log_in(**_: object) -> kopf.ConnectionInfo:
        return await login()

    kopf.on.login(registry=registry)(log_in)
    return registry


def _seen(kind: SourceKind, cluster: Cluster) -> Callable[..., Awaitable[None]]:
    """Return the handler that takes in what resources refer to of a kind."""

    async def see(event: kopf.RawEvent, **_: object) -> None:
        metadata = event["object"]["metadata"]
        source = Source(kind, str(metadata["namespace"]), str(metadata["name"]))
        if source in cluster.referred:
            gone = event["type"] == "DELETED"
            cluster.see_text(
                source, absent(source) if gone else read_source(source, event["object"])
            )

    return see


async def follow(namespace: str, registry: kopf.OperatorRegistry, stop: Callable[[], None]) -> None:
    """Feed the handlers with what happens in a namespace until that can't go on.

    Raises `WatchEndedError`. ``stop`` is called by the signals that end the process.

    `kopf.operator` would in the end cancel every task that is younger than its own, those of other
    namespaces too; so its tasks are started and ended here.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry, settings=kopf_settings(), namespaces=[namespace], standalone=True
    )
    _claim_signals(stop)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [str(each.args[0]) for each in results if isinstance(each, Exception) and each.args]
    raise WatchEndedError("; ".join(dict.fromkeys(errors)) or "the watch ended")


def _claim_signals(stop: Callable[[], None]) -> None:
    """Take the signals back: kopf takes them for the one namespace that it watches."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop)
