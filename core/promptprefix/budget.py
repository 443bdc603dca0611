"""The pin budget of one pod: how many blocks pins may hold, and who holds them in a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from promptprefix.fleet import Limits
from promptprefix.heads import Footprint, Node
from promptprefix.wire import EngineState

UNLIMITED = 1 << 62
"""Budget of an engine that has not told how many blocks it has."""

Load: TypeAlias = tuple[int, ...]
"""Order of pods in which room is looked for: the most free blocks, the fewest prefixes, the tie."""

_ROUNDING = 1e-9
"""A share of a number that is whole but for the error of binary fractions counts as whole."""


def budget_of(engine: EngineState | None, limits: Limits) -> int:
    """Return how many blocks the prefixes of a namespace may pin; by default half of all."""
    if engine is None:
        return 0
    blocks = engine.budget_blocks or engine.blocks_total // 2
    if blocks <= 0 and engine.blocks_total <= 0:
        return UNLIMITED
    return int(blocks * limits.budget_share + _ROUNDING)


class Claimant(Protocol):
    """Who holds room."""

    priority: int
    order: tuple[int, float, str]


class Ledger:
    """Who holds which blocks of one pod; a block that several hold counts once.

    ``tie`` decides between pods that are equal in all else.
    """

    __slots__ = ("_load", "_lowest", "_nodes", "_rooms", "budget", "claims", "tie", "used")

    def __init__(self, budget: int = UNLIMITED, tie: int = 0) -> None:
        self.budget = budget
        self.tie = tie
        self.used = 0
        self.claims: dict[Claimant, Footprint] = {}
        self._nodes: dict[Node, int] = {}
        self._rooms: dict[int, int] = {}
        self._lowest: int | None = None
        self._load: Load | None = None

    def clear(self) -> None:
        """Begin anew."""
        self.used = 0
        self.claims.clear()
        self._nodes.clear()
        self._forget()

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.budget - self.used

    def need(self, footprint: Footprint) -> int:
        """Return how many blocks it takes beside those that are held."""
        if not footprint.shared:
            return footprint.blocks
        need = footprint.own
        for node, size in footprint.shared:
            if node not in self._nodes:
                need += size
        return need

    def fits(self, footprint: Footprint) -> bool:
        """Whether there is room; what takes none always fits."""
        need = self.need(footprint)
        return not need or self.used + need <= self.budget

    def take(self, claimant: Claimant, footprint: Footprint) -> bool:
        """Give room to a claimant that holds none; return whether it fits."""
        need = footprint.blocks if not footprint.shared else self.need(footprint)
        if need and self.used + need > self.budget:
            return False
        self.claims[claimant] = footprint
        self._add(need, footprint)
        return True

    def force(self, claimant: Claimant, footprint: Footprint) -> None:
        """Give room to a claimant that holds none, whether it fits or not."""
        self.claims[claimant] = footprint
        self._add(self.need(footprint), footprint)

    def give_back(self, claimant: Claimant) -> None:
        """Take a claimant's room away."""
        footprint = self.claims.pop(claimant)
        self.used -= footprint.own
        for node, size in footprint.shared:
            self._nodes[node] -= 1
            if not self._nodes[node]:
                del self._nodes[node]
                self.used -= size
        self._forget()

    def could(self, claimant: Claimant, footprint: Footprint) -> bool:
        """Whether a claimant would find room for this instead of what it has, if need be by others.

        Those of lower priority would go.
        """
        given = [
            (each, their)
            for each, their in self.claims.items()
            if each is claimant or each.priority < claimant.priority
        ]
        for each, _ in given:
            self.give_back(each)
        fits = self.fits(footprint)
        self._restore(given)
        return fits

    def might(self, claimant: Claimant, footprint: Footprint) -> bool:
        """Whether it is not plain that a claimant that holds none could find no room for this."""
        return not footprint.own or self.room(claimant.priority) >= footprint.own

    def has(self, node: Node) -> bool:
        """Whether somebody holds these blocks."""
        return node in self._nodes

    def _add(self, need: int, footprint: Footprint) -> None:
        self.used += need
        for node, _ in footprint.shared:
            self._nodes[node] = self._nodes.get(node, 0) + 1
        self._forget()

    def _forget(self) -> None:
        """Drop what follows from the claims."""
        self._load = None
        if self._rooms or self._lowest is not None:
            self._rooms.clear()
            self._lowest = None

    @property
    def load(self) -> Load:
        """Where the pod stands in the order in which room is looked for."""
        if self._load is None:
            self._load = (self.used - self.budget, len(self.claims), self.tie)
        return self._load

    @property
    def weight(self) -> Load:
        """Where the pod stands in the order in which room is made.

        Those whose least important holder is so least of all come first, then as room is looked
        for.
        """
        return self.lowest, *self.load

    @property
    def lowest(self) -> int:
        """The lowest priority of those that hold room."""
        if self._lowest is None:
            self._lowest = min((each.priority for each in self.claims), default=0)
        return self._lowest

    def room(self, priority: int) -> int:
        """Return the most room that there is for this priority, if all lower ones go."""
        room = self._rooms.get(priority)
        if room is None:
            room = self.budget - self.used
            for each, their in self.claims.items():
                if each.priority < priority:
                    room += their.blocks
            self._rooms[priority] = room
        return room

    def reckon(self, budget: int) -> None:
        """Go by another budget, or by other priorities of those that hold room."""
        self.budget = budget
        self._forget()

    def victims(self, footprint: Footprint, priority: int) -> Sequence[Claimant] | None:
        """Return who must go to make room for a prefix of this priority; None: nobody helps.

        Only claimants of lower priority go, the last in order first; who need not go stays.
        """
        lower = sorted(
            (each for each in self.claims if each.priority < priority and self.claims[each].blocks),
            key=lambda each: each.order,
            reverse=True,
        )
        given: list[tuple[Claimant, Footprint]] = []
        for each in lower:
            if self.fits(footprint):
                break
            given.append((each, self.claims[each]))
            self.give_back(each)
        if not self.fits(footprint):
            self._restore(given)
            return None
        gone: list[Claimant] = []
        held = Ledger(self.budget)
        held.used, held._nodes = self.used, dict(self._nodes)
        held._add(held.need(footprint), footprint)
        for each, their in reversed(given):
            if not held.take(each, their):
                gone.append(each)
        self._restore(given)
        return gone

    def _restore(self, given: Sequence[tuple[Claimant, Footprint]]) -> None:
        for each, footprint in given:
            self.force(each, footprint)


class Extras:
    """Further blocks of those who hold room on a pod, as far as the claims there leave room.

    They are ``tight`` if some found none. When claims change, they are reckoned anew.
    """

    __slots__ = ("_held", "_ledger", "_nodes", "_used", "tight")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._used = 0
        self._nodes: dict[Node, int] = {}
        self._held: dict[Claimant, list[Footprint]] = {}
        self.tight = False

    def clear(self) -> None:
        """Begin anew."""
        self._used = 0
        self._nodes.clear()
        self._held.clear()
        self.tight = False

    def take(self, claimant: Claimant, footprint: Footprint) -> bool:
        """Give room to another version of somebody; return whether it fits."""
        ledger, nodes = self._ledger, self._nodes
        need, added = footprint.own, []
        for node, size in footprint.shared:
            if not ledger.has(node):
                added.append(node)
                need += 0 if node in nodes else size
        if need and ledger.used + self._used + need > ledger.budget:
            self.tight = True
            return False
        self._used += need
        for node in added:
            nodes[node] = nodes.get(node, 0) + 1
        self._held.setdefault(claimant, []).append(footprint)
        return True

    def give_back(self, claimant: Claimant) -> None:
        """Take somebody's room away."""
        for footprint in self._held.pop(claimant, ()):
            self._used -= footprint.own
            for node, size in footprint.shared:
                if node not in self._nodes:
                    continue
                self._nodes[node] -= 1
                if not self._nodes[node]:
                    del self._nodes[node]
                    self._used -= size
