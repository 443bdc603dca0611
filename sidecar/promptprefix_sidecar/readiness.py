"""When the pod may take requests: once per engine epoch, after its prefixes are warm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptprefix.wire import Phase
from promptprefix_sidecar.snapshot import FOREVER, Record, Snapshot


@dataclass(frozen=True)
class Readiness:
    """Latched per engine epoch, so an edit never takes a pod out of service.

    An engine is the same if its ``boot`` is and the plugin, once known, has the same ``epoch``.
    Times are monotonic seconds: ``healthy_since`` is when this boot was first seen healthy,
    ``answered_at`` when the operator first answered a state that said so.
    """

    boot: str = ""
    epoch: str = ""
    healthy_since: float = FOREVER
    answered_at: float = FOREVER
    latched: bool = False
    failed_open: bool = False

    def answered(self, boot: str, now: float) -> Readiness:
        """Take note that the operator answered a state with a healthy engine of this boot."""
        if boot != self.boot or self.answered_at != FOREVER:
            return self
        return replace(self, answered_at=now)

    def seen(self, snapshot: Snapshot, now: float, limits: ReadinessLimits) -> Readiness:
        """Return the readiness after a look at the snapshot."""
        if not snapshot.engine.healthy or snapshot.engine.asleep:
            return self
        current = self._of_engine(snapshot, now)
        if current.latched:
            return current
        # The operator may assign placements a moment after it first hears of a healthy engine.
        if now >= current.answered_at + limits.settle_s and all_settled(snapshot):
            return replace(current, latched=True)
        if snapshot.let_go or now >= current.healthy_since + limits.timeout_s:
            return replace(current, latched=True, failed_open=True)
        return current

    def next_look(self, now: float, limits: ReadinessLimits) -> float:
        """Return when (monotonic) time alone may open the gate next."""
        if self.latched:
            return FOREVER
        times = (self.answered_at + limits.settle_s, self.healthy_since + limits.timeout_s)
        return min((at for at in times if at > now), default=FOREVER)

    def _of_engine(self, snapshot: Snapshot, now: float) -> Readiness:
        """Return the readiness of the engine in the snapshot: a fresh one if it is another."""
        report = snapshot.plugin.report
        epoch = "" if report is None else report.epoch
        if snapshot.boot != self.boot:
            return Readiness(boot=snapshot.boot, epoch=epoch, healthy_since=now)
        if not epoch or epoch == self.epoch:
            return self
        if not self.epoch:
            return replace(self, epoch=epoch)
        return Readiness(
            boot=self.boot, epoch=epoch, healthy_since=now, answered_at=self.answered_at
        )


@dataclass(frozen=True)
class ReadinessLimits:
    """``timeout_s`` bounds the wait; ``settle_s`` is how long an empty set may still fill."""

    timeout_s: float = 600.0
    settle_s: float = 3.0


def all_settled(snapshot: Snapshot) -> bool:
    """Return whether every wanted placement is warm or can't become so by waiting."""
    return snapshot.desired_known and all(
        _is_settled(record) for record in snapshot.records.values()
    )


def _is_settled(record: Record) -> bool:
    """Return whether waiting is of no use: it is warm, can't become so, or isn't to be warmed."""
    if not record.held or record.placement.retained:
        return True
    return record.phase is Phase.WARM or record.settled


def not_ready_because(readiness: Readiness, snapshot: Snapshot) -> str:
    """Return why the pod is not ready, or an empty text if it is."""
    if not snapshot.engine.healthy:
        return "the engine is not healthy"
    if snapshot.engine.asleep:
        return "the engine is asleep"
    if readiness.latched and readiness.boot == snapshot.boot:
        return ""
    if not snapshot.desired_known:
        return "the operator has not answered yet"
    waiting = [
        f"{record.placement.namespace}/{record.placement.name} ({record.phase})"
        for record in snapshot.records.values()
        if not _is_settled(record)
    ]
    return f"waiting for {', '.join(waiting[:5]) or 'placements'}"
