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


class Note(NamedTuple):
    """What one pod reports.

    ``hits`` are the latest matches and ``digests`` the tokens of what is warm, by version.
    ``counted``: its engine's plugin counts matches; ``unheard``: it has not said whether.
    ``holds``: it may hold some version; ``lingers``: it holds another than the declared one.
    ``knows``: it holds some or has released it. ``sizes`` are tokens and heads, by version.
    """

    holding: Holding
    hits: Mapping[str, float]
    digests: Mapping[str, str]
    warm: Sequence[str]
    counted: bool
    unheard: bool
    holds: bool
    lingers: bool
    knows: bool
    sizes: Sequence[tuple[str, int, tuple[str, ...]]]


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
        self._warm: Counter[str] = Counter()
        self._counted = 0
        self._unheard = 0
        self.by_station: dict[Station, Note] = {}
        self.holdings: dict[Station, Holding] = {}
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
        before = self._hits_told()
        for station in moved:
            old = self.by_station.pop(station, None)
            new = self._note(station, old) if station in mentioned else None
            if new is not None:
                self.by_station[station] = new
            self._hold(station, new.holding if new is not None else None)
            self._count(station, old, new)
        self.stale.update(moved)
        if (hits := self._hits_told()) != before:
            self._tell(hits)
        return True

    def _hold(self, station: Station, holding: Holding | None) -> None:
        self.sound.discard(station)
        self.heated.discard(station)
        if holding is None:
            self.holdings.pop(station, None)
            return
        self.holdings[station] = holding
        if holding.pinned:
            self.sound.add(station)
        if holding.warm:
            self.heated.add(station)

    def _hits_told(self) -> dict[str, float]:
        return {id_: max(hits.values()) for id_, hits in self._hits.items() if hits}

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
        hits, digests, warm, sizes = {}, {}, [], []
        for state in account.states:
            id_ = state.id
            counted = counted or state.counted
            if id_ == self._current:
                current = state
            else:
                lingers = lingers or held_there(state)
            if id_ not in self._versions:
                continue
            sizes.append((id_, state.tokens, state.heads))
            if state.last_hit is not None and state.last_hit > 0:
                hits[id_] = min(state.last_hit, _LATEST)
            if serving and state.phase is Phase.WARM:
                warm.append(id_)
                if digest := warm_digest(each, id_, id_ in self._salted):
                    digests[id_] = digest
        holding = Holding(each.pod.name, current, engine)
        if old is not None and _same(old.holding, holding):
            holding = old.holding
        return Note(
            holding=holding,
            hits=hits,
            digests=digests,
            warm=warm,
            counted=counted,
            unheard=account.knows and (not account.states or _asking(engine)),
            holds=account.holds,
            lingers=lingers,
            knows=account.knows,
            sizes=sizes,
        )

    def _count(self, station: Station, old: Note | None, new: Note | None) -> None:
        """Bring the sums from a pod's note before to the present one."""
        if old is not None:
            self._counted -= old.counted
            self._unheard -= old.unheard
            for id_ in old.warm:
                self._warm[id_] -= 1
            for id_ in old.hits:
                del self._hits[id_][station]
            for id_ in old.digests:
                del self.digests[id_][station]
        if new is not None:
            self._counted += new.counted
            self._unheard += new.unheard
            for id_ in new.warm:
                self._warm[id_] += 1
            for id_, hit in new.hits.items():
                self._hits.setdefault(id_, {})[station] = hit
            for id_, digest in new.digests.items():
                self.digests.setdefault(id_, {})[station] = digest
        if old is None or new is None:
            self.status_mark += 1
            self.route_mark += 1
            return
        self.route_mark += old.digests != new.digests
        self.status_mark += (
            old.holding is not new.holding
            or old.warm != new.warm
            or old.sizes != new.sizes
            or (old.holds, old.lingers, old.knows) != (new.holds, new.lingers, new.knows)
        )


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
