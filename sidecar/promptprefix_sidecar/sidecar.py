"""Builds the sidecar from its settings and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import httpx
from aiohttp import web

from promptprefix_sidecar.actions import Policy
from promptprefix_sidecar.bearer import authorization, bearer
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.contents import Contents, ContentSource
from promptprefix_sidecar.control_client import ControlClient, dialling
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.engine_tls import engine_tls
from promptprefix_sidecar.executor import Executor
from promptprefix_sidecar.gate import Gate
from promptprefix_sidecar.lanes import Lane
from promptprefix_sidecar.latch_file import LatchFile
from promptprefix_sidecar.metrics import Metrics
from promptprefix_sidecar.offloading import Offloader
from promptprefix_sidecar.own_traffic import OwnTraffic
from promptprefix_sidecar.pin_commander import PinCommander
from promptprefix_sidecar.pin_desk import PinDesk
from promptprefix_sidecar.prefilling import Prefiller
from promptprefix_sidecar.provenance import Provenance
from promptprefix_sidecar.readiness import ReadinessLimits
from promptprefix_sidecar.rendering import Renderer
from promptprefix_sidecar.residency import Toucher
from promptprefix_sidecar.salts import Salts, SaltSource
from promptprefix_sidecar.server import make_app
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.state import Address
from promptprefix_sidecar.sync import ControlApi, SyncLoop
from promptprefix_sidecar.watcher import Watcher

ENGINE_CONNECTIONS = 16


class Part(Protocol):
    """One of the parts."""

    async def run(self) -> None:
        """Run until cancelled."""


@dataclass(frozen=True)
class Sidecar:
    """The parts that run side by side."""

    board: Board
    contents: Contents
    salts: Salts
    watcher: Watcher
    keep_lane: Lane
    touch_lane: Lane
    warm_lane: Lane
    sync: SyncLoop
    gate: Gate
    metrics: Metrics
    probe_interval_s: float
    events: Part | None = None

    async def run(self) -> None:
        """Run all parts until cancelled; a part that fails brings the process down."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watcher.run(self.probe_interval_s), name="watcher")
            group.create_task(self.keep_lane.keep(), name="keep")
            group.create_task(self.touch_lane.touch(), name="touch")
            group.create_task(self.warm_lane.warm(), name="warm")
            group.create_task(self.sync.run(), name="sync")
            group.create_task(self.gate.run(), name="gate")
            group.create_task(self._forget_contents(), name="contents")
            if self.events is not None:
                group.create_task(self.events.run(), name="kv events")

    async def _forget_contents(self) -> None:
        changed = self.board.subscribe()
        while True:
            await changed.wait()
            wanted = [r.placement for r in self.board.snapshot.records.values() if r.wanted]
            self.contents.keep(frozenset(placement.content_digest for placement in wanted))
            self.salts.keep(frozenset(placement.id for placement in wanted if placement.salted))


class Control(ControlApi, ContentSource, SaltSource, Protocol):
    """All that the sidecar asks of the operator."""


def build_sidecar(
    settings: Settings, engine_client: httpx.AsyncClient, control: Control, clock: Clock
) -> Sidecar:
    """Put the parts together."""
    board, metrics = Board(), Metrics()
    metrics.watch(board)
    engine = EngineApi(
        engine_client,
        authorization=_engine_authorization(settings),
        prefill_timeout_s=settings.warm_timeout_s,
    )
    policy = _policy(settings)
    contents, salts = Contents(control), Salts(control)
    executor = _executor(settings, board, engine, contents, salts, policy, clock, metrics)
    limits = ReadinessLimits(settings.ready_timeout_s, settings.ready_settle_s)
    gate = Gate(board, limits, clock, LatchFile(settings.latch_file))
    return Sidecar(
        board=board,
        contents=contents,
        salts=salts,
        watcher=Watcher(engine, board, metrics.engine_restarts.inc),
        keep_lane=Lane(board, executor, policy, clock),
        touch_lane=Lane(board, executor, policy, clock),
        warm_lane=Lane(board, executor, policy, clock),
        sync=SyncLoop(
            control,
            board,
            Address(settings.pod_ip, settings.engine_port, settings.engine_tls),
            clock,
            hold_s=settings.hold_s,
            answered=gate.answered,
            failed=lambda kind: metrics.sync_errors.labels(kind=kind).inc(),
        ),
        gate=gate,
        metrics=metrics,
        probe_interval_s=settings.probe_interval_s,
        events=_kv_events(settings, board, salts, clock, metrics),
    )


def _policy(settings: Settings) -> Policy:
    return Policy(
        lease_s=settings.lease_s,
        report_interval_s=settings.report_interval_s,
        touch_interval_s=settings.touch_interval_s,
        digest_check_interval_s=settings.digest_check_interval_s,
        soft_wait_s=settings.soft_wait_s,
        warm_chunk_tokens=settings.warm_chunk_tokens,
    )


def _executor(
    settings: Settings,
    board: Board,
    engine: EngineApi,
    contents: Contents,
    salts: Salts,
    policy: Policy,
    clock: Clock,
    metrics: Metrics,
) -> Executor:
    """Put together what acts on the engine."""
    commander = PinCommander(
        engine,
        settings.key_file,
        clock,
        lease_s=settings.lease_s,
        prefill_timeout_s=settings.warm_timeout_s,
    )
    traffic = OwnTraffic(metrics)
    prefiller = Prefiller(board, engine, commander, traffic, policy, clock)
    toucher = Toucher(engine, prefiller, traffic)
    desk = PinDesk(
        board,
        commander,
        prefiller,
        traffic,
        clock,
        lambda reason: metrics.pin_failures.labels(reason=reason).inc(),
    )
    return Executor(
        board,
        contents,
        salts,
        Renderer(engine),
        toucher,
        desk,
        Offloader(board, desk, toucher, clock),
        Provenance(engine, metrics),
        policy,
        clock,
        metrics,
    )


def _kv_events(
    settings: Settings, board: Board, salts: Salts, clock: Clock, metrics: Metrics
) -> Part | None:
    if settings.kv_events_endpoint is None:
        return None
    # Without events the process does without ZeroMQ and its memory.
    from promptprefix_sidecar.kv_events.stream import kv_events
    from promptprefix_sidecar.kv_events.subscriber import Endpoints

    endpoints = Endpoints(
        settings.kv_events_endpoint,
        settings.kv_events_replay_endpoint or "",
        settings.kv_events_topic or "",
    )
    pace_s = settings.touch_interval_s
    feed_at = (settings.listen_host, settings.blocks_port) if settings.blocks_port else None
    return kv_events(endpoints, board, salts, clock, metrics.registry, pace_s, feed_at)


def _engine_authorization(settings: Settings) -> Callable[[], str] | None:
    if settings.engine_api_key is not None:
        key = settings.engine_api_key.get_secret_value().encode()
        return lambda: bearer(key, "the setting")
    if settings.engine_api_key_file is not None:
        file = settings.engine_api_key_file
        return lambda: authorization(file)
    return None


def connect_engine(settings: Settings) -> httpx.AsyncClient:
    """Return a client of the engine's API."""
    host = settings.engine_url.host or ""
    return httpx.AsyncClient(
        base_url=str(settings.engine_url),
        verify=engine_tls(host, settings.pod_ip) if settings.engine_tls else False,
        # The engine is in the same pod; a proxy from the environment has no part in it.
        trust_env=False,
        limits=httpx.Limits(max_connections=ENGINE_CONNECTIONS),
    )


@contextlib.asynccontextmanager
async def open_sidecar(settings: Settings, clock: Clock) -> AsyncIterator[Sidecar]:
    """Open the connections and the port, and close them at the end."""
    dial = dialling(str(settings.control_url))
    control = ControlClient(dial, ca_file=settings.ca_file, token_file=settings.token_file)
    async with connect_engine(settings) as engine_client:
        sidecar = build_sidecar(settings, engine_client, control, clock)
        runner = web.AppRunner(make_app(sidecar.gate, sidecar.metrics.page), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.listen_host, settings.listen_port).start()
            yield sidecar
        finally:
            await runner.cleanup()
            await control.reconnect()


async def run_sidecar(settings: Settings, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set. Pins stay: their leases outlive a restart of this process."""
    async with open_sidecar(settings, Clock()) as sidecar:
        work = asyncio.create_task(sidecar.run())
        waiter = asyncio.create_task(stop.wait())
        await asyncio.wait({work, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
