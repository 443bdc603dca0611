"""All that the sidecar knows at one moment, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase, Placement
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.pins import PinReport, digest_of, pin_id

NEVER = float("-inf")
FOREVER = float("inf")


OUTAGE_BOOT = "outage-"
"""Begin of the name of a boot that is only told apart by an outage between it and the last."""


@dataclass(frozen=True)
class EngineView:
    """The engine from outside. ``boot`` names its process: another boot has an empty cache.

    ``roots`` are the places of the models' weights by name, where the engine tells them;
    ``adapters`` names those models that are adapters of another.
    ``running`` and ``waiting`` count requests that are not the sidecar's.
    """

    healthy: bool = False
    boot: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    roots: tuple[tuple[str, str], ...] = ()
    adapters: tuple[str, ...] = ()
    max_model_len: int = 0
    block_size: int = 0
    blocks_total: int = 0
    cache_usage: float = 0.0
    prefix_caching: bool = True
    running: int = 0
    waiting: int = 0
    asleep: bool = False


class PluginStatus(StrEnum):
    """What is known of the pin plugin in this boot of the engine."""

    UNKNOWN = "unknown"
    ABSENT = "absent"
    REFUSING = "refusing"
    WORKING = "working"


@dataclass(frozen=True)
class PluginView:
    """``soft_reason`` says why hard pins can't be had; ``ask_at`` when to ask again (monotonic).

    The last ``unreported`` reports that were asked for failed, the first of them was asked for at
    ``failing_since``.
    """

    status: PluginStatus = PluginStatus.UNKNOWN
    soft_reason: str = ""
    report: PinReport | None = None
    ask_at: float = NEVER
    unreported: int = 0
    failing_since: float = FOREVER


@dataclass(frozen=True)
class FoundPin:
    """What the engine holds of a placement whose text was never asked for here."""

    id: str
    tokens: int


@dataclass(frozen=True)
class Record:
    """One placement on this engine: what is wanted, what was found, and when to act again.

    Times are monotonic seconds, ``last_hit`` is Unix seconds. ``pinned`` says how the prefix is
    protected now; ``settled`` that a failure will not go away by itself. ``found`` stands for the
    head of a retained placement. ``stale``: the engine may still hold it for an adapter's former
    weights. ``released`` is what came of the blocks, ``evicted`` the pins dropped on the way there.
    ``copied_tokens`` of its leading tokens have a copy in an offload tier, by the KV events.
    ``losses`` in a row, the last ``lost_at``: blocks of it went by the KV events, held by nothing.
    ``unproved``: they don't vouch for a soft pin, so a touch asks the engine to tell of its blocks.
    """

    placement: Placement
    wanted: bool = True
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    head: Head | None = None
    found: FoundPin | None = None
    stale: bool = False
    released: OnIdle | None = None
    evicted: frozenset[str] = frozenset()
    pinned: Pinning = Pinning.NONE
    resident_tokens: int = 0
    pinned_tokens: int = 0
    copied_tokens: int = 0
    unproved: bool = False
    losses: int = 0
    lost_at: float = NEVER
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
        if self.head is not None:
            return pin_id(self.placement.id, self.head.digest)
        return "" if self.found is None else self.found.id

    @property
    def tokens(self) -> int:
        """Tokens of its head; 0 before they are known."""
        if self.head is not None:
            return self.head.tokens
        return 0 if self.found is None else self.found.tokens

    @property
    def token_digest(self) -> str:
        """Digest of its head; empty before it is known."""
        if self.head is not None:
            return self.head.digest
        return "" if self.found is None else digest_of(self.found.id)

    @property
    def held(self) -> bool:
        """Whether it is to be held just now."""
        return self.wanted and self.placement.release is None

    @property
    def releasing(self) -> bool:
        """Whether it is to be released and has not been yet."""
        return self.wanted and self.placement.release is not None and self.released is None


@dataclass(frozen=True)
class GateView:
    """The pod's readiness. ``failed_open``: in this epoch it came by the time limit."""

    open: bool = False
    failed_open: bool = False


@dataclass(frozen=True)
class Snapshot:
    """``boot`` is the boot of the engine that plugin and records are about.

    ``desired_known`` is whether the operator has answered since this process started; ``let_go``
    that it has been silent for too long since. ``blocks_key`` and ``pod_uid`` are what it said of
    the feed of block names; ``blocks_port`` is where that is open, 0 while it isn't.
    """

    engine: EngineView = EngineView()
    boot: str = ""
    plugin: PluginView = PluginView()
    desired_known: bool = False
    let_go: bool = False
    blocks_key: str = field(default="", repr=False)
    pod_uid: str = ""
    blocks_port: int = 0
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
