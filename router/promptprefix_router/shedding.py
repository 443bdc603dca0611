"""Which requests may be refused under overload, and what overload is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shedding:
    """Requests whose ``header`` names one of the ``objectives`` are sheddable.

    They are refused while every endpoint that could take them has ``saturated_at`` active requests
    or more.
    """

    header: str = ""
    objectives: frozenset[str] = frozenset()
    saturated_at: int = 0

    def covers(self, told: str) -> bool:
        """Whether a request with this value of the header is sheddable.

        Equal headers are joined by commas. One of them is enough: what a client adds to what the
        part in front says takes nothing back.
        """
        return bool(told) and any(name.strip() in self.objectives for name in told.split(","))


NO_SHEDDING = Shedding()
