"""How many bytes of bodies all exchanges together may hold."""

from __future__ import annotations


class HoldBudget:
    """Counts bytes; beyond ``capacity`` a request is decided by what was seen of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.held = 0

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes; return whether there was room."""
        if self.held + size > self._capacity:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        """Return reserved bytes."""
        self.held -= size
