"""The endpoints of a route table as bits of masks, so that choices cost the same for any number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from promptprefix_router.choosing.prompt_chain import CHUNK_TOKENS
from promptprefix_router.choosing.ring import Ring
from promptprefix_router.control.routes import Endpoint, Routes


@dataclass(frozen=True)
class Pool:
    """One route table's endpoints, each on a seat that it keeps as long as it is known."""

    seats: Mapping[str, int] = field(default_factory=dict)
    """Seats by address."""
    endpoints: Mapping[int, Endpoint] = field(default_factory=dict)
    ring: Ring = field(default_factory=lambda: Ring({}))
    _ready: Mapping[str, int] = field(default_factory=dict)
    _warm: Mapping[str, int] = field(default_factory=dict)

    def after(self, routes: Routes) -> Pool:
        """Return the pool of the next route table."""
        endpoints = routes.endpoints
        seats = _seats(self.seats, (endpoint.address for endpoint in endpoints))
        ready: dict[str, int] = {}
        warm: dict[str, int] = {}
        for endpoint in endpoints:
            bit = 1 << seats[endpoint.address]
            for digest in endpoint.warm:
                warm[digest] = warm.get(digest, 0) | bit
            if endpoint.ready:
                for model in endpoint.models:
                    ready[model] = ready.get(model, 0) | bit
        ring = self.ring if seats == self.seats else Ring(seats)
        by_seat = {seats[endpoint.address]: endpoint for endpoint in endpoints}
        return Pool(seats, by_seat, ring, ready, warm)

    @property
    def rooms(self) -> dict[int, int]:
        """How many chunks of prompts the engine on each seat can hold; 0 if that is unknown."""
        return {
            seat: endpoint.cache_tokens // CHUNK_TOKENS for seat, endpoint in self.endpoints.items()
        }

    def replaced(self, before: Pool) -> list[int]:
        """Return the seats whose engine is another one than ``before``, or has started anew."""
        return [
            seat
            for seat, endpoint in self.endpoints.items()
            if (known := before.endpoints.get(seat)) and known.engine != endpoint.engine
        ]

    def ready(self, model: str | None) -> int:
        """Return the mask of the ready endpoints that serve ``model``; 0 for an unknown one."""
        return self._ready.get(model, 0) if model is not None else 0

    @property
    def any_ready(self) -> int:
        """The mask of all ready endpoints, whatever they serve."""
        mask = 0
        for seats in self._ready.values():
            mask |= seats
        return mask

    def warm(self, digests: Iterable[str]) -> int:
        """Return the mask of the endpoints that hold any of ``digests`` warm."""
        mask = 0
        for digest in digests:
            mask |= self._warm.get(digest, 0)
        return mask

    def mask(self, addresses: Iterable[str]) -> int:
        """Return the mask of those of ``addresses`` that are known."""
        seats = (self.seats.get(address) for address in addresses)
        return sum({1 << seat for seat in seats if seat is not None})


def _seats(before: Mapping[str, int], addresses: Iterable[str]) -> Mapping[str, int]:
    """Seat newcomers where nobody sits, the lowest seats first."""
    present = set(addresses)
    seats = {address: seat for address, seat in before.items() if address in present}
    taken = set(seats.values())
    free = (seat for seat in range(len(present)) if seat not in taken)
    for address in sorted(present - seats.keys()):
        seats[address] = next(free)
    return seats
