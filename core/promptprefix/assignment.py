"""Who gets room on which pods.

Resources are served by priority, then by age. All keep the pods that hold them already, as far as
the budgets go, and of equal priority those first that are in force there; what is missing goes to
pods with room, spread over zones, then nodes, then load; where no pod has room, prefixes of lower
priority make it. So whoever is short of pods is short because of prefixes of its own or higher
priority, and a pod that comes moves nothing. One of unknown size takes free room by its estimate,
but nobody makes room for it before some engine has told how large it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from promptprefix.draft import Draft
from promptprefix.room import Room
from promptprefix.roster import Station


def assign(drafts: Sequence[Draft], loose: Iterable[Draft], stations: Sequence[Station]) -> None:
    """Choose the pods of all drafts; those that are not ``loose`` keep what they had."""
    for draft in loose:
        draft.sync()
    if not _have_room(drafts, stations):
        _keep_in_turn(drafts, stations)
    room = Room()
    room.fill(draft for draft in drafts if draft.missing > 0 and draft.open)
    room.stand_in(draft for draft in drafts if draft.failed and draft.stand_ins > 0)


def _have_room(drafts: Sequence[Draft], stations: Sequence[Station]) -> bool:
    """Let all rest where there is room beside what they have claimed.

    Return whether that is what they would keep in turn. It is not if there is not room for all that
    they have claimed, or if one that rests would come before others of lower priority.
    """
    if any(station.ledger.used > station.ledger.budget for station in stations):
        return False
    rest = [draft for draft in drafts if draft.rests and draft.might_rest()]
    for draft in sorted(rest, key=lambda each: (not each.sized, each.order)):
        draft.keep_synced()
        for station, stay in draft.keep_in_turn(resting=True):
            if draft.sized and station.ledger.could(draft, stay.first):
                return False
    return True


def _keep_in_turn(drafts: Sequence[Draft], stations: Sequence[Station]) -> None:
    """Let all keep the pods that have room, those who come first before the others."""
    for station in stations:
        station.ledger.clear()
    for draft in drafts:
        draft.keep_none()
    in_order = sorted(drafts, key=attrgetter("order"))
    for _, equals in groupby(in_order, key=attrgetter("priority")):
        rivals = list(equals)
        for draft in rivals:
            draft.keep_in_turn(resting=False)
        for draft in rivals:
            if draft.sized:
                draft.keep_in_turn(resting=True)
    for draft in in_order:
        if not draft.sized:
            draft.keep_in_turn(resting=True)
