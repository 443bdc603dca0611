"""All that the sidecar knows at one moment, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from promptprefix.resource import Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.pins import PinReport, pin_id

NEVER = float("-inf")
FOREVER = float("inf")


OUTAGE_BOOT = "outage-"
"""Begin of the name of a boot that is only told apart by an outage between it and the last."""


@dataclass(frozen=True)
class EngineView:
    """The engine from outside. ``boot`` names its process: another boot has an empty cache."""

    healthy: bool = False
    boot: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    max_model_len: int = 0
    block_size: int = 0
    blocks_total: int = 0
    cache_usage: float = 0.0
    prefix_caching: bool = True
    waiting: int = 0


class PluginStatus(StrEnum):
    """What is known of the pin plugin in this boot of the engine."""

    UNKNOWN = "unknown"
    ABSENT = "absent"
    REFUSING = "refusing"
    WORKING = "working"


@dataclass(frozen=True)
class PluginView:
    """``soft_reason`` says why hard pins can't be had; ``ask_at`` when to ask again (monotonic)."""

    status: PluginStatus = PluginStatus.UNKNOWN
    soft_reason: str = ""
    report: PinReport | None = None
    ask_at: float = NEVER


@dataclass(frozen=True)
class Record:
    """One placement on this engine: what is wanted, what was found, and when to act again.

    Times are monotonic seconds, ``last_hit`` is Unix seconds. ``pinned`` says how the prefix is
    protected now; ``settled`` that a failure will not go away by itself.
    """

    placement: Placement
    wanted: bool = True
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    head: Head | None = None
    pinned: Pinning = Pinning.NONE
    resident_tokens: int = 0
    pinned_tokens: int = 0
    last_hit: float | None = None
    warm_seconds: float | None = None
    hard_evictions: int = 0
    soft_evictions: int = 0
    failures: int = 0
    retry_at: float = NEVER
    settled: bool = False
    waiting_since: float = FOREVER
    touch_at: float = FOREVER
    recheck_at: float = FOREVER
    pin_failures: int = 0
    pin_reason: str = ""
    pin_message: str = ""
    pin_retry_at: float = NEVER
    pin_force_at: float = NEVER
    pin_attempt_at: float = NEVER

    @property
    def id(self) -> str:
        """Id of the placement."""
        return self.placement.id

    @property
    def pin_id(self) -> str:
        """Id of the pin of its current tokens; empty before they are known."""
        return "" if self.head is None else pin_id(self.placement.id, self.head.digest)


@dataclass(frozen=True)
class GateView:
    """The pod's readiness. ``failed_open``: in this epoch it came by the time limit."""

    open: bool = False
    failed_open: bool = False


@dataclass(frozen=True)
class Snapshot:
    """``boot`` is the boot of the engine that plugin and records are about.

    ``desired_known`` is whether the operator has answered since this process started; ``let_go``
    that it has been silent for too long since.
    """

    engine: EngineView = EngineView()
    boot: str = ""
    plugin: PluginView = PluginView()
    desired_known: bool = False
    let_go: bool = False
    gate: GateView = GateView()
    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def epoch(self) -> str:
        """The engine epoch as others see it."""
        report = self.plugin.report
        return report.epoch if report is not None else self.engine.boot

    @property
    def block_size(self) -> int:
        """Tokens of a KV block; 0 if unknown."""
        report = self.plugin.report
        return report.block_size if report is not None else self.engine.block_size
