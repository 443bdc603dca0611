"""The pods that hold a prefix already, and on how many of them it stays."""

from __future__ import annotations

from typing import NamedTuple

from promptprefix.eligibility import Standing
from promptprefix.heads import Footprint
from promptprefix.roster import Station

SPARE = 2
"""On so many pods more than are wanted it is tried, where it could not be warmed."""


class Stay(NamedTuple):
    """How a pod holds a prefix already, and the room that it would keep there.

    ``first`` is the room of the version that is served from it now, an earlier one if ``old``;
    ``second`` that of the one before, if the first finds none. ``cold``: none of it is warm there;
    ``resting``: nor is any of it held there, or to be held. ``failed``: the pod could not warm it.
    """

    standing: Standing
    first: Footprint
    second: Footprint | None = None
    old: bool = False
    cold: bool = False
    resting: bool = False
    failed: bool = False

    @property
    def rank(self) -> tuple[bool, bool]:
        """Where it stands among others: the warm first, those that failed last."""
        return self.cold, self.failed


class Stays:
    """The pods that may keep a prefix, those that should stay first; changed one by one.

    ``mark`` rises with every change. ``changed`` are the pods of changes, until somebody takes note
    of them; ``odd`` those whose stay is not simply that on a pod that serves.
    """

    __slots__ = ("by_station", "changed", "in_order", "mark", "odd")

    def __init__(self) -> None:
        self.by_station: dict[Station, Stay] = {}
        self.in_order: list[Station] = []
        self.changed: set[Station] = set()
        self.odd: set[Station] = set()
        self.mark = 0

    def put(self, station: Station, stay: Stay | None) -> bool:
        """Note the stay on a pod, or that there is none; return whether that is a change."""
        if self.by_station.get(station) == stay:
            return False
        self.mark += 1
        self.changed.add(station)
        self.odd.discard(station)
        if stay is None:
            del self.by_station[station]
            return True
        self.by_station[station] = stay
        if stay.old or stay.failed or stay.resting or stay.standing is not Standing.ELIGIBLE:
            self.odd.add(station)
        return True


class Quota:
    """On how many healthy pods a prefix stays, and on how many that may recover.

    An engine that restarts keeps its place only as long as no healthy pod can take it, and a pod
    that could not warm it until others have done so. What is not held stays on ``healthy`` pods of
    either kind.
    """

    def __init__(self, held: bool, healthy: int, recovering: int) -> None:
        self._held = held
        self._healthy = healthy
        self._recovering = recovering
        self._unwarmed = healthy
        self._spare = SPARE

    def may(self, stay: Stay) -> bool:
        """Whether one more may stay."""
        if stay.standing is not Standing.ELIGIBLE and self._held:
            return self._recovering > 0
        return self._healthy > 0 or self._tries(stay)

    def take(self, stay: Stay) -> bool:
        """Whether one more may stay; count it."""
        if not self.may(stay):
            return False
        if stay.standing is not Standing.ELIGIBLE and self._held:
            self._recovering -= 1
            return True
        if self._healthy > 0:
            self._healthy -= 1
        else:
            self._spare -= 1
        self._unwarmed -= not stay.cold
        return True

    def _tries(self, stay: Stay) -> bool:
        """Whether a pod that could not warm it goes on beside those that stand in for it."""
        return stay.failed and self._unwarmed > 0 and self._spare > 0
