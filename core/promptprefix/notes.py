"""What pods report of one resource, read again only where a pod says something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from promptprefix.accounts import Account, Reading
from promptprefix.fleet import Version
from promptprefix.resource import Pinning
from promptprefix.roster import Company, Station
from promptprefix.routes import told_apart

_LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


@dataclass(frozen=True, eq=False, slots=True)
class Note:
    """What a pod reports of all versions; pods that report the same have one note.

    ``known`` is what it says of the versions that are known, whether they are warm, and under which
    digests routers know those that are. Of the declared one it is ``unsaid`` whether it is there,
    or it is ``held`` or about to be, ``hot``, that is warm, and ``sound``, pinned as well.
    ``counted``: its engine's plugin counts matches; ``unheard``: it has not said whether.
    ``lingers``: it holds another than the declared one.
    """

    account: Account
    known: Sequence[tuple[Reading, bool, str]]
    held: bool
    unsaid: bool
    hot: bool
    sound: bool
    counted: bool
    unheard: bool
    lingers: bool

    def same(self, other: Note) -> bool:
        """Whether a status says the same of both, and the same pods are chosen by them."""
        return self is other or self.account.said == other.account.said


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
        self._hits: dict[str, dict[Station, float]] = {id_: {} for id_ in self._versions}
        self._latest: Mapping[str, float] = {}
        self._warm: Counter[str] = Counter()
        self._counted = 0
        self._unheard = 0
        self.by_station: dict[Station, Note] = {}
        self.sound: set[Station] = set()
        self.heated: set[Station] = set()
        self.digests: dict[str, dict[Station, str]] = {id_: {} for id_ in self._versions}
        self.matched: Mapping[str, datetime] = {}
        self.shown: Mapping[str, datetime] = {}
        self.stale: dict[Station, None] = {}
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
        moved: Collection[Station] | None
        mentioned = company.mentioned.get(self._uid, {})
        if company is self._company:
            moved = company.moved.get(self._uid)
        else:
            moved = dict.fromkeys((*self.by_station, *mentioned))
            self._company = company
        if not moved:
            return False
        self._follow(moved, mentioned)
        self.stale.update(dict.fromkeys(moved))
        latest = {id_: max(hits.values()) for id_, hits in self._hits.items() if hits}
        if latest != self._latest:
            self._latest = latest
            self._tell(latest)
        return True

    def _follow(self, moved: Iterable[Station], mentioned: Container[Station]) -> None:
        """Bring the notes of pods, and what is summed up of them, to the present."""
        by_station, uid = self.by_station, self._uid
        made: dict[Account, Note] = {}
        for station in moved:
            old, new = by_station.get(station), None
            if station in mentioned:
                account = station.candidate.accounts[uid]
                if (new := made.get(account)) is None:
                    new = made[account] = self._note(account)
            if old is not None:
                self._strike(station, old)
            if new is not None:
                self._enter(station, new)
            if old is None or new is None or not new.same(old):
                self.status_mark += 1
                self.route_mark += old is None or new is None or _digests(old) != _digests(new)

    def _tell(self, hits: Mapping[str, float]) -> None:
        """Note the latest matches; a status shows the minute."""
        self.matched = {id_: datetime.fromtimestamp(hit, UTC) for id_, hit in hits.items()}
        shown = {id_: at.replace(second=0, microsecond=0) for id_, at in self.matched.items()}
        if shown != self.shown:
            self.shown = shown
            self.status_mark += 1

    def _note(self, account: Account) -> Note:
        serving = account.manner.serving
        current = account.reading(self._current)
        known = []
        for each in account.readings:
            if each.id in self._versions:
                warm = serving and each.warm
                digest = each.digest if warm else ""
                salted = digest and each.id in self._salted
                known.append((each, warm, told_apart(each.id, digest) if salted else digest))
        hot = serving and current is not None and current.warm
        return Note(
            account,
            known,
            held=current is not None and current.held,
            unsaid=current is None,
            hot=hot,
            sound=hot and current is not None and current.pinned is Pinning.HARD,
            counted=any(each.counted for each in account.readings),
            unheard=account.knows and (not account.readings or account.manner.asking),
            lingers=any(each.held for each in account.readings if each is not current),
        )

    def _strike(self, station: Station, old: Note) -> None:
        """Take a pod's note away, and out of the sums."""
        del self.by_station[station]
        self.sound.discard(station)
        self.heated.discard(station)
        self._counted -= old.counted
        self._unheard -= old.unheard
        for reading, warm, _ in old.known:
            self._warm[reading.id] -= warm
            self._hits[reading.id].pop(station, None)
            self.digests[reading.id].pop(station, None)

    def _enter(self, station: Station, new: Note) -> None:
        """Keep a pod's note, and add it to the sums."""
        self.by_station[station] = new
        if new.hot:
            self.heated.add(station)
        if new.sound:
            self.sound.add(station)
        self._counted += new.counted
        self._unheard += new.unheard
        reported = station.candidate.reported
        for reading, warm, digest in new.known:
            id_ = reading.id
            self._warm[id_] += warm
            hit = reported[id_].last_hit
            if hit is not None and hit > 0:
                self._hits[id_][station] = hit if hit < _LATEST else _LATEST
            if digest:
                self.digests[id_][station] = digest


def _digests(note: Note) -> Sequence[tuple[str, str]]:
    return [(reading.id, digest) for reading, _, digest in note.known]
