"""Small makers of sidecar values for table tests."""

from __future__ import annotations

from promptprefix.resource import Pinning
from promptprefix.tokens import token_bytes, token_digest
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.pins import PinReport, PinView, SeenPin
from promptprefix_sidecar.snapshot import (
    EngineView,
    PluginStatus,
    PluginView,
    Record,
    Snapshot,
)

BLOCK = 16


def placement(
    name: str = "a",
    *,
    pinning: Pinning = Pinning.HARD,
    priority: int = 0,
    model: str = "m",
    digest: str = "c",
) -> Placement:
    return Placement(
        id=name,
        namespace="ml",
        name=name,
        model=model,
        fingerprint="pp1:sha256:0",
        content_digest=digest,
        pinning=pinning,
        priority=priority,
    )


def head(blocks: int = 2, first: int = 0) -> Head:
    ids = list(range(first, first + blocks * BLOCK + 1))
    return Head(token_bytes(ids), blocks * BLOCK, token_digest(ids[:-1]))


def warm(
    name: str = "a",
    *,
    pinning: Pinning = Pinning.HARD,
    pinned: Pinning = Pinning.HARD,
    priority: int = 0,
    touch_at: float = 1000.0,
) -> Record:
    found = head()
    return Record(
        placement(name, pinning=pinning, priority=priority),
        phase=Phase.WARM,
        head=found,
        pinned=pinned,
        resident_tokens=found.tokens,
        pinned_tokens=found.tokens if pinned is Pinning.HARD else 0,
        recheck_at=1000.0,
        touch_at=touch_at,
    )


def prepared(name: str = "a", *, pinning: Pinning = Pinning.HARD, priority: int = 0) -> Record:
    wanted = placement(name, pinning=pinning, priority=priority)
    return Record(wanted, head=head(), waiting_since=0.0, recheck_at=1000.0)


def pin(record: Record, *, seen_at: float = 0.0, lease_left: float = 120.0) -> SeenPin:
    assert record.head is not None
    tokens = record.head.tokens
    view = PinView(
        id=record.pin_id,
        tokens=tokens,
        resident_tokens=tokens,
        pinned_tokens=tokens,
        lease_left_s=lease_left,
        priority=record.placement.priority,
    )
    return SeenPin(view, seen_at)


def report(*pins: SeenPin, epoch: str = "e", at: float = 0.0, pinned: int = 0) -> PinReport:
    return PinReport(
        epoch=epoch,
        pin_epoch=0,
        block_size=BLOCK,
        blocks_total=100,
        blocks_free=100,
        blocks_pinned=pinned,
        budget_blocks=10,
        asked_at=at,
        reported_at=at,
        pins={seen.view.id: seen for seen in pins},
    )


def snapshot(
    *records: Record,
    found: PinReport | None = None,
    status: PluginStatus | None = None,
    ask_at: float = float("-inf"),
    healthy: bool = True,
    waiting: int = 0,
    known: bool = True,
) -> Snapshot:
    working = PluginStatus.ABSENT if found is None else PluginStatus.WORKING
    return Snapshot(
        engine=EngineView(
            healthy=healthy,
            boot="b",
            models=("m",),
            block_size=BLOCK,
            blocks_total=100,
            waiting=waiting,
        ),
        boot="b",
        plugin=PluginView(status or working, report=found, ask_at=ask_at),
        desired_known=known,
        records={record.id: record for record in records},
    )
