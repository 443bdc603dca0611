"""What chosen pods report of the declared version, as a status tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from promptprefix.fleet import serves
from promptprefix.resource import Pinning
from promptprefix.wire import EngineState, Phase, PlacementState


class Holding(NamedTuple):
    """A chosen pod and what it reports of the declared version."""

    pod: str
    state: PlacementState | None
    engine: EngineState | None

    @property
    def serving(self) -> bool:
        """Whether its engine `serves`."""
        return serves(self.engine)

    @property
    def warm(self) -> bool:
        """Whether the version is warm there."""
        return self.state is not None and self.state.phase is Phase.WARM and serves(self.engine)

    @property
    def pinned(self) -> bool:
        """Whether it is warm there and can't be evicted."""
        return self.warm and self.state is not None and self.state.pinned is Pinning.HARD

    @property
    def released(self) -> bool:
        """Whether nothing of it is held there, nor being released."""
        if self.state is None or not self.serving:
            return True
        return self.state.phase in (Phase.RELEASED, Phase.FAILED) and not self.state.pinned_tokens


@dataclass(frozen=True)
class Crew:
    """The chosen pods, as far as it matters while a prefix is held.

    ``unsound`` are those that are not as good as they can be: warm and hard-pinned; of ``waiting``
    ones, which serve and say nothing of it yet, only the names are told. Tokens and blocks are as
    the first of the warm pods that knows them reports, or of all if none is warm.
    """

    count: int
    warm: int
    unsound: tuple[Holding, ...]
    size: tuple[int, int]
    waiting: tuple[str, ...] = ()

    @property
    def pinned(self) -> int:
        """How many are as good as they can be."""
        return self.count - len(self.unsound) - len(self.waiting)


def crew_of(holdings: Sequence[Holding]) -> Crew:
    """Return the crew of all these pods."""
    warm = [holding for holding in holdings if holding.warm]
    unsound = tuple(holding for holding in holdings if not holding.pinned)
    return Crew(len(holdings), len(warm), unsound, size_of(warm or holdings))


def size_of(holdings: Iterable[Holding]) -> tuple[int, int]:
    """Return tokens and blocks, as the first pod that knows them reports."""
    for holding in holdings:
        state, engine = holding.state, holding.engine
        if state is not None and engine is not None and state.tokens > 0:
            return state.tokens, state.tokens // engine.block_size if engine.block_size > 0 else 0
    return 0, 0
