"""Builds the picker from its parts and runs it until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import structlog
import uvloop
from prometheus_client import disable_created_metrics
from pydantic import ValidationError

from promptprefix_router.allocator import give_back_large
from promptprefix_router.brain import Brain
from promptprefix_router.choosing.engine_page import fetch_page
from promptprefix_router.choosing.engine_reader import EngineReader
from promptprefix_router.choosing.load_reader import TARGET as CLUSTERS
from promptprefix_router.choosing.load_reader import LoadReader
from promptprefix_router.control.control_link import ControlAccess, control_client
from promptprefix_router.control.match_reporter import MatchReporter
from promptprefix_router.control.route_keeper import PublishedPool, RouteKeeper
from promptprefix_router.control.route_watcher import RouteWatcher
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import (
    Handler,
    HttpRequest,
    HttpResponse,
    open_door,
    open_local_door,
)
from promptprefix_router.envoy.bootstrap import write_bootstrap
from promptprefix_router.envoy.client_routes import RouteRules
from promptprefix_router.envoy.drain import drain
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.header_count_reader import HeaderCountReader
from promptprefix_router.envoy.header_counts import HeaderCounts
from promptprefix_router.envoy.publisher import EnvoyPublisher
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.gateway.pool_memory import PoolMemory
from promptprefix_router.matching.near_misses import PATH
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.rewriting.rewrite_door import RewriteDoor
from promptprefix_router.settings import RouterSettings
from promptprefix_router.workers.process import supervise
from promptprefix_router.workers.supervisor import LEADER
from promptprefix_router.workers.worker_link import answer_parent

BAD_USAGE = 2
REWRITE_GRACE_S = 1.0
"""How long a stopping picker works on bodies that it was handed."""
BODY_SLACK = 65_536
"""Envoy may show a little more of a body than it was asked to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the picker, write Envoy's configuration, or let Envoy drain; return the exit status."""
    parser = argparse.ArgumentParser(prog="promptprefix_router", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="run the picker (default)")
    config = commands.add_parser("envoy-config", help="write Envoy's bootstrap and stop")
    config.add_argument("--output", type=Path, help="folder that Envoy reads")
    ending = commands.add_parser("drain", help="let Envoy drain before it is stopped")
    ending.add_argument("--seconds", type=float, required=True, help="how long it goes on serving")
    worker = commands.add_parser("worker", help="one of several pickers; the picker runs them")
    worker.add_argument("--number", type=int, required=True)
    worker.add_argument("--descriptor", type=int, required=True, help="socket of its parent")
    options = parser.parse_args(arguments)
    try:
        settings = RouterSettings()
    except ValidationError as error:
        sys.stderr.write(f"settings (environment, prefix PROMPTPREFIX_): {error}\n")
        return BAD_USAGE
    if options.command == "envoy-config":
        write_bootstrap(settings, options.output or settings.envoy_dir)
        return 0
    if options.command == "drain":
        return drain(settings.envoy_admin, options.seconds)
    if not settings.control_url.startswith("https://"):
        sys.stderr.write("PROMPTPREFIX_CONTROL_URL must be the operator's https:// address\n")
        return BAD_USAGE
    _configure_logs(settings.log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    give_back_large()
    if options.command == "worker":
        uvloop.run(serve(settings, Place(options.number, options.descriptor)))
    elif settings.workers > 1:
        return uvloop.run(_serve_by_workers(settings))
    else:
        uvloop.run(serve(settings))
    return 0


@dataclass(frozen=True)
class Place:
    """A worker's number, and the socket over which its parent asks it."""

    number: int
    descriptor: int


async def _serve_by_workers(settings: RouterSettings) -> int:
    return await supervise(settings, _stop_signal())


async def serve(settings: RouterSettings, place: Place | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises `OSError` if a port or the folder can't be used.

    With a ``place`` it is one of several; the leader of them looks after what is there once.
    """
    leads = place is None or place.number == LEADER
    known_before = not leads and not EndpointsFile(settings.envoy_dir).empty
    access = ControlAccess(
        lambda: control_client(settings.control_url, settings.ca_file), settings.token_file
    )
    brain = Brain.of(settings, access, lambda: known_before or not pool.empty)
    if settings.door == "gateway":
        pool: PublishedPool = PoolMemory()
        door = _gateway_door(settings, brain)
    elif place is not None and not leads:
        pool = PoolMemory()
        door = _standalone_door(settings, brain, None, place.number)
    else:
        pool = publisher = _publisher(settings, brain.metrics)
        door = _standalone_door(settings, brain, publisher)
    keeper = RouteKeeper(
        brain.picker, pool, brain.metrics, settings.tenant, time.monotonic, brain.follow
    )
    watcher = RouteWatcher(access, settings.tenant, keeper, brain.metrics)
    reporter = MatchReporter(
        access, settings.tenant, brain.tally, brain.metrics, time.time, time.monotonic
    )
    works = [watcher.run(), reporter.run(), brain.texts.run()]
    if brain.precise is not None:
        works += [brain.precise.feeds.run(), brain.precise.feeds.sweep()]
    if settings.engine_interval_ms:
        works.append(_engine_reader(settings, brain).run())
    stop = _stop_signal()
    exposition: asyncio.Server | None = None
    try:
        async with _running(*works), door:
            # Who asks for the health learns that the door is open; it is told to the very end.
            if place is not None:
                await answer_parent(_exposition(brain), place.descriptor, stop.set)
            else:
                exposition = await open_door(
                    _exposition(brain), settings.metrics_host, settings.metrics_port, public=True
                )
            structlog.get_logger("picker").info("ready", tenant=settings.tenant, door=settings.door)
            # What lives for ever need not be looked at by each collection.
            gc.freeze()
            await stop.wait()
        await reporter.farewell(leaving=leads)
    finally:
        if exposition is not None:
            exposition.close()


@asynccontextmanager
async def _standalone_door(
    settings: RouterSettings, brain: Brain, publisher: EnvoyPublisher | None, worker: int = LEADER
) -> AsyncIterator[None]:
    """Answer the Envoy beside the picker, tell it names, and read its load and counts.

    Without a ``publisher`` another process tells names and reads counts.
    """
    picker, ledger, metrics = brain.picker, brain.ledger, brain.metrics
    decisions = await _decision_door(settings, picker, worker)
    rewrites = RewriteDoor(
        picker,
        metrics,
        settings.max_request_bytes,
        settings.tenant_header,
        shared=settings.workers > 1,
    )
    await rewrites.start(settings.decision_host, settings.rewrite_port)
    address = settings.admin_host, settings.admin_port, urlsplit(settings.envoy_admin).netloc
    fetch = partial(fetch_page, *address, CLUSTERS)
    load = LoadReader(fetch, ledger, metrics, settings.load_interval_ms / 1000)
    try:
        if publisher is None:
            async with _running(load.run()):
                yield
            return
        admin = httpx.AsyncClient(base_url=settings.envoy_admin, timeout=2.0, trust_env=False)
        counts = HeaderCounts(settings.envoy_dir, brain.tally, metrics)
        counting = HeaderCountReader(admin, counts, publisher, lambda: ledger.served, metrics)
        async with admin:
            async with _running(load.run(), counting.run(), publisher.run(before=counting.read)):
                yield
            # What Envoy resolved until now is told by the picker's last report.
            await counting.read()
    finally:
        # Envoy's idle connections end with the process: an answer is never half given.
        decisions.close()
        await rewrites.stop(REWRITE_GRACE_S)


async def _decision_door(settings: RouterSettings, picker: Picker, worker: int) -> asyncio.Server:
    answer = ExtAuthz(
        picker, settings.max_request_bytes, settings.tenant_header, settings.shedding
    ).answer
    most = settings.max_request_bytes + BODY_SLACK
    if settings.decision_sockets:
        return await open_local_door(answer, settings.decision_sockets[worker], most)
    shared = settings.workers > 1
    return await open_door(
        answer, settings.decision_host, settings.decision_port, most, shared=shared
    )


@asynccontextmanager
async def _gateway_door(settings: RouterSettings, brain: Brain) -> AsyncIterator[None]:
    """Answer gateways, and tell them of the picker's health."""
    # Its libraries cost memory, so they are loaded only where they serve.
    from promptprefix_router.gateway.server import GatewayServer

    server = GatewayServer(settings, brain.picker, brain.ledger, brain.metrics)
    await server.start()
    async with _running(server.health.run()):
        yield
        await server.stop()


def _publisher(settings: RouterSettings, metrics: RouterMetrics) -> EnvoyPublisher:
    folder = settings.envoy_dir
    routes = RoutesFile(folder, RouteRules.of(settings))
    return EnvoyPublisher(EndpointsFile(folder), routes, metrics)


@asynccontextmanager
async def _running(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Let ``works`` go on meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in works]
        yield
        for task in running:
            task.cancel()


def _exposition(brain: Brain) -> Handler:
    def answer(request: HttpRequest) -> HttpResponse:
        if request.path == PATH:
            return brain.near_misses.answer()
        return brain.metrics.answer(request)

    return answer


def _engine_reader(settings: RouterSettings, brain: Brain) -> EngineReader:
    interval_s = settings.engine_interval_ms / 1000
    return EngineReader(
        lambda: brain.picker.routes.endpoints, brain.ledger, brain.metrics, interval_s
    )


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _configure_logs(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
