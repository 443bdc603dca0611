"""The dossiers of all resources, and which of them have to be looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from promptprefix.dossier import Dossier
from promptprefix.draft import Draft
from promptprefix.fleet import Prefix, Snapshot, owner
from promptprefix.heads import Families
from promptprefix.roster import Roster
from promptprefix.sizes import Remembered


@dataclass(frozen=True)
class Opening:
    """What a register has for one snapshot.

    ``dossiers`` are those of all resources by namespace and name, ``stirred`` those for which
    something is new, and ``gone`` what was planned for resources that are no more. ``every``:
    something is new that concerns all.
    """

    every: bool
    dossiers: Sequence[Dossier]
    stirred: Sequence[Dossier]
    gone: Sequence[Draft]


class Register:
    """Keeps the dossiers from plan to plan."""

    def __init__(self) -> None:
        self._dossiers: dict[str, Dossier] = {}
        self._families = Families()
        self._remembered: dict[str, object] = {}
        self._ground: tuple[object, ...] = ()
        self._now: datetime | None = None

    def open(self, snapshot: Snapshot, roster: Roster, now: datetime) -> Opening:
        """Bring all dossiers to the present."""
        every = self._other_ground(snapshot, now)
        resized = self._resized(snapshot.sizes)
        opened: dict[str, Dossier] = {}
        stirred: dict[str, Dossier] = {}
        for prefix in sorted(snapshot.prefixes, key=_order):
            uid, company = prefix.uid, roster.company(prefix.namespace)
            known = dossier = self._dossiers.get(uid)
            if dossier is None or (dossier.prefix is not prefix and dossier.prefix != prefix):
                dossier = Dossier(prefix, _draft(prefix, known))
            if (
                dossier is not known
                or every
                or dossier.company is not company
                or uid in company.moved
                or uid in resized
                or not dossier.fresh(now)
            ):
                stirred[uid] = dossier
            opened[uid] = dossier
        gone = [
            known.draft
            for uid, known in self._dossiers.items()
            if (now_known := opened.get(uid)) is None or now_known.draft is not known.draft
        ]
        self._read(snapshot, roster, opened, stirred)
        self._dossiers = opened
        return Opening(every, list(opened.values()), list(stirred.values()), gone)

    def _other_ground(self, snapshot: Snapshot, now: datetime) -> bool:
        """Whether anything is new that concerns all resources, or the clock was set back."""
        ground = (snapshot.limits, snapshot.routed, snapshot.silent, snapshot.retention)
        back = self._now is not None and now < self._now
        every = back or snapshot.settling or (ground, False) != self._ground
        self._ground, self._now = (ground, snapshot.settling), now
        return every

    def _resized(self, remembered: Remembered) -> set[str]:
        """Return the resources of which other sizes are remembered than before."""
        before: Mapping[str, object] = self._remembered
        if before == remembered:
            return set()
        self._remembered = dict(remembered)
        ids = before.keys() | remembered.keys()
        return {owner(id_) for id_ in ids if before.get(id_) != remembered.get(id_)}

    def _read(
        self,
        snapshot: Snapshot,
        roster: Roster,
        opened: Mapping[str, Dossier],
        stirred: dict[str, Dossier],
    ) -> None:
        """Read what is new of the stirred; blocks that they share with others stir those, too."""
        for uid in self._dossiers.keys() - opened.keys():
            self._families.tell(uid, ())
        for uid, dossier in stirred.items():
            company = roster.company(dossier.prefix.namespace)
            if dossier.read(company, snapshot.sizes) or dossier is not self._dossiers.get(uid):
                self._families.tell(uid, dossier.heads)
        for dossier in stirred.values():
            dossier.gauge(self._families)
        for uid in self._families.moved() - stirred.keys():
            if uid in opened and opened[uid].gauge(self._families):
                stirred[uid] = opened[uid]


def _order(prefix: Prefix) -> tuple[str, str, str]:
    return prefix.namespace, prefix.name, prefix.uid


def _draft(prefix: Prefix, known: Dossier | None) -> Draft:
    """Return the draft of a resource that is another now; one with another name begins anew."""
    if known is not None and _order(known.prefix) == _order(prefix):
        return known.draft
    return Draft(prefix)
