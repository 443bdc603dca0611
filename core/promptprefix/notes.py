"""What pods report of one resource, read again only where a pod says something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from promptprefix.eligibility import Account, held_there
from promptprefix.fleet import Version
from promptprefix.holdings import Holding
from promptprefix.roster import Company, Station
from promptprefix.routes import warm_digest
from promptprefix.wire import HARD_PINS, EngineState, Phase, PlacementState

_SILENT = Account((), holds=False, warm=False, knows=False, firm=False)
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


class Report(NamedTuple):
    """What one pod reports of one version: its latest match, the digest of tokens that are warm."""

    id: str
    hit: float | None
    warm: bool
    digest: str
    tokens: int
    heads: tuple[str, ...]


class Note(NamedTuple):
    """What one pod reports of all versions.

    ``counted``: its engine's plugin counts matches; ``unheard``: it has not said whether.
    ``holds``: it may hold some version; ``lingers``: it holds another than the declared one.
    ``knows``: it holds some or has released it.
    """

    holding: Holding
    reports: Sequence[Report]
    counted: bool
    unheard: bool
    holds: bool
    lingers: bool
    knows: bool


class Notes:
    """What all pods report of the versions of a resource.

    ``status_mark`` rises when the status may say something else or another pod be chosen,
    ``route_mark`` when routers may be told something else. ``stale`` collects the pods that moved,
    for whoever takes it. ``heated`` are those that have the declared version warm, ``sound`` those
    of them that pin it.
    """

    def __init__(
        self,
        uid: str,
        versions: Sequence[Version],
        current: Version | None,
        salted: Container[str] = (),
    ) -> None:
        self._uid = uid
        self._salted = salted
        self._versions = frozenset(version.id for version in versions)
        self._current = current.id if current is not None else ""
        self._company: Company | None = None
        self._hits: dict[str, dict[Station, float]] = {}
        self._latest: Mapping[str, float] = {}
        self._warm: Counter[str] = Counter()
        self._counted = 0
        self._unheard = 0
        self.by_station: dict[Station, Note] = {}
        self.sound: set[Station] = set()
        self.heated: set[Station] = set()
        self.digests: dict[str, dict[Station, str]] = {}
        self.matched: Mapping[str, datetime] = {}
        self.shown: Mapping[str, datetime] = {}
        self.stale: set[Station] = set()
        self.status_mark = 0
        self.route_mark = 0

    @property
    def counted(self) -> bool:
        """Whether some pod counts its matches."""
        return self._counted > 0

    @property
    def unheard(self) -> bool:
        """Whether some pod may count its matches and has not yet said so."""
        return self._unheard > 0

    @property
    def warm_pods(self) -> Mapping[str, int]:
        """How many pods hold it warm, by version."""
        return {id_: count for id_, count in self._warm.items() if count}

    def read(self, company: Company) -> bool:
        """Read what is new; return whether anything is."""
        moved: Iterable[Station] | None
        if company is self._company:
            moved = company.moved.get(self._uid)
        else:
            moved = [*self.by_station, *company.mentioned.get(self._uid, ())]
            self._company = company
        if not moved:
            return False
        mentioned = company.mentioned.get(self._uid, {})
        for station in moved:
            old = self.by_station.get(station)
            new = self._note(station, old) if station in mentioned else None
            self._keep(station, old, new)
            if old is not None:
                self._strike(station, old)
            if new is not None:
                self._enter(station, new)
            self._mark(old, new)
        self.stale.update(moved)
        latest = {id_: max(hits.values()) for id_, hits in self._hits.items() if hits}
        if latest != self._latest:
            self._latest = latest
            self._tell(latest)
        return True

    def _keep(self, station: Station, old: Note | None, new: Note | None) -> None:
        if old is not None:
            self.sound.discard(station)
            self.heated.discard(station)
        if new is None:
            self.by_station.pop(station, None)
            return
        self.by_station[station] = new
        if new.holding.warm:
            self.heated.add(station)
            if new.holding.pinned:
                self.sound.add(station)

    def _tell(self, hits: Mapping[str, float]) -> None:
        """Note the latest matches; a status shows the minute."""
        self.matched = {id_: datetime.fromtimestamp(hit, UTC) for id_, hit in hits.items()}
        shown = {id_: at.replace(second=0, microsecond=0) for id_, at in self.matched.items()}
        if shown != self.shown:
            self.shown = shown
            self.status_mark += 1

    def _note(self, station: Station, old: Note | None) -> Note:
        each = station.candidate
        engine, serving = each.engine, each.serving
        account = each.accounts.get(self._uid) or _SILENT
        current: PlacementState | None = None
        counted = lingers = False
        reports = []
        for state in account.states:
            id_ = state.id
            counted = counted or state.counted
            if id_ == self._current:
                current = state
            else:
                lingers = lingers or held_there(state)
            if id_ in self._versions:
                warm, hit = serving and state.phase is Phase.WARM, state.last_hit
                digest = warm_digest(each, id_, id_ in self._salted) if warm else ""
                hit = min(hit, _LATEST) if hit is not None and hit > 0 else None
                reports.append(Report(id_, hit, warm, digest, state.tokens, state.heads))
        holding = Holding(each.pod.name, current, engine)
        if old is not None and _same(old.holding, holding):
            holding = old.holding
        unheard = account.knows and (not account.states or _asking(engine))
        return Note(holding, reports, counted, unheard, account.holds, lingers, account.knows)

    def _strike(self, station: Station, old: Note) -> None:
        """Take a pod's note out of the sums."""
        self._counted -= old.counted
        self._unheard -= old.unheard
        for each in old.reports:
            self._warm[each.id] -= each.warm
            if each.hit is not None:
                del self._hits[each.id][station]
            if each.digest:
                del self.digests[each.id][station]

    def _enter(self, station: Station, new: Note) -> None:
        """Add a pod's note to the sums."""
        self._counted += new.counted
        self._unheard += new.unheard
        for each in new.reports:
            self._warm[each.id] += each.warm
            if each.hit is not None:
                self._hits.setdefault(each.id, {})[station] = each.hit
            if each.digest:
                self.digests.setdefault(each.id, {})[station] = each.digest

    def _mark(self, old: Note | None, new: Note | None) -> None:
        """Note who may tell something else now."""
        if old is None or new is None:
            self.status_mark += 1
            self.route_mark += 1
            return
        self.route_mark += _digests(old) != _digests(new)
        self.status_mark += (
            old.holding is not new.holding
            or (old.holds, old.lingers, old.knows) != (new.holds, new.lingers, new.knows)
            or _sizes(old) != _sizes(new)
        )


def _digests(note: Note) -> Sequence[tuple[str, str]]:
    return [(each.id, each.digest) for each in note.reports]


def _sizes(note: Note) -> Sequence[tuple[object, ...]]:
    return [(each.id, each.warm, each.tokens, each.heads) for each in note.reports]


def _asking(engine: EngineState | None) -> bool:
    """Whether a sidecar does not know yet what its engine's plugin has."""
    return engine is not None and HARD_PINS not in engine.capabilities and not engine.soft_reason


def _same(one: Holding, other: Holding) -> bool:
    """Whether a status says the same of both."""
    return (
        one.pod == other.pod
        and _told(one.state) == _told(other.state)
        and _engine(one.engine) == _engine(other.engine)
    )


def _told(state: PlacementState | None) -> tuple[object, ...]:
    if state is None:
        return ()
    return (
        state.phase,
        state.reason,
        state.message,
        state.tokens,
        state.pinned,
        state.pinned_tokens,
        state.released,
    )


def _engine(engine: EngineState | None) -> tuple[object, ...]:
    if engine is None:
        return ()
    return engine.healthy, engine.block_size, engine.soft_reason, engine.offload_tier
