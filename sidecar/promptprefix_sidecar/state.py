"""What the sidecar tells the operator: a snapshot in the words of the wire."""

from __future__ import annotations

from dataclasses import dataclass

from promptprefix.reasons import Reason
from promptprefix.resource import Pinning
from promptprefix.wire import (
    HARD_PINS,
    MATCH_STEP_S,
    EngineState,
    Phase,
    PlacementState,
    SidecarState,
)
from promptprefix_sidecar.snapshot import PluginStatus, Record, Snapshot


@dataclass(frozen=True)
class Address:
    """Where the router reaches the engine, and whether it speaks HTTPS there."""

    host: str
    port: int
    tls: bool = False


def sidecar_state(snapshot: Snapshot, address: Address) -> SidecarState:
    """Return the whole state."""
    return SidecarState(
        engine=_engine_state(snapshot, address),
        ready=snapshot.gate.open,
        failed_open=snapshot.gate.failed_open,
        placements=tuple(
            _placement_state(record, snapshot) for record in snapshot.records.values()
        ),
    )


def urgent_part(state: SidecarState) -> SidecarState:
    """Return the state without what changes with every request; a change of the rest can't wait.

    A match of a released prefix brings it back; one of a held prefix is told in steps.
    """
    engine = {"blocks_free": 0, "running": 0, "waiting": 0}
    return state.model_copy(
        update={
            "engine": state.engine.model_copy(update=engine),
            "placements": tuple(map(_urgent_placement, state.placements)),
        }
    )


def _urgent_placement(placement: PlacementState) -> PlacementState:
    if placement.phase is Phase.RELEASED:
        return placement.model_copy(update={"resident_tokens": 0})
    hit = placement.last_hit
    step = None if hit is None else hit // MATCH_STEP_S
    urgent: dict[str, object] = {"last_hit": step}
    if placement.phase is not Phase.WARM:
        urgent["resident_tokens"] = 0  # with KV events it changes with every block
    return placement.model_copy(update=urgent)


def _engine_state(snapshot: Snapshot, address: Address) -> EngineState:
    engine, plugin, report = snapshot.engine, snapshot.plugin, snapshot.plugin.report
    total = engine.blocks_total if report is None else report.blocks_total
    free = round(total * (1 - engine.cache_usage)) if report is None else report.blocks_free
    hard = plugin.status is PluginStatus.WORKING
    return EngineState(
        healthy=engine.healthy,
        address=address.host,
        port=address.port,
        tls=address.tls,
        models=engine.models,
        epoch=snapshot.epoch,
        version=engine.version,
        block_size=snapshot.block_size,
        blocks_total=total,
        blocks_free=free,
        blocks_pinned=0 if report is None else report.blocks_pinned,
        budget_blocks=0 if report is None else report.budget_blocks,
        running=engine.running,
        waiting=engine.waiting,
        asleep=engine.asleep,
        offload_tier="" if report is None else report.offload_tier,
        capabilities=(HARD_PINS,) if hard else (),
        soft_reason=plugin.soft_reason,
        blocks_port=snapshot.blocks_port,
    )


def _placement_state(record: Record, snapshot: Snapshot) -> PlacementState:
    reason, message = _explanation(record, snapshot)
    report = snapshot.plugin.report
    return PlacementState(
        id=record.id,
        phase=record.phase,
        reason=reason,
        message=message,
        token_digest=record.token_digest,
        tokens=record.tokens,
        resident_tokens=record.resident_tokens,
        pinned_tokens=record.pinned_tokens,
        pinned=record.pinned,
        released=record.released,
        heads=() if record.head is None else record.head.ladder,
        last_hit=None if record.last_hit is None else max(0.0, record.last_hit),
        counted=report is not None and report.counts(record.id),
        warm_seconds=record.warm_seconds,
    )


def _explanation(record: Record, snapshot: Snapshot) -> tuple[str, str]:
    """Return why a prefix is not what its resource asks for; no reason if it is."""
    if snapshot.engine.asleep and record.held and record.phase is Phase.PENDING:
        return Reason.ENGINE_ASLEEP, "the engine was put to sleep: warmed again when it wakes up"
    short = record.placement.pinning is Pinning.HARD and record.pinned is not Pinning.HARD
    if record.phase is not Phase.WARM or not short:
        return record.reason, record.message
    if record.pin_reason:
        return record.pin_reason, record.pin_message
    return Reason.SOFT_PINNED, snapshot.plugin.soft_reason
