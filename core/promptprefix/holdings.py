"""What chosen pods report of the declared version, as a status tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from promptprefix.fleet import serves
from promptprefix.resource import Pinning
from promptprefix.wire import EngineState, Phase, PlacementState


@dataclass(frozen=True)
class Holding:
    """A chosen pod and what it reports of the declared version.

    ``serving``: its engine `serves`; ``warm``: the version is warm there, and ``pinned``: can't be
    evicted.
    """

    pod: str
    state: PlacementState | None
    engine: EngineState | None
    serving: bool = field(init=False, compare=False)
    warm: bool = field(init=False, compare=False)
    pinned: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        serving, state = serves(self.engine), self.state
        warm = serving and state is not None and state.phase is Phase.WARM
        pinned = warm and state is not None and state.pinned is Pinning.HARD
        object.__setattr__(self, "serving", serving)
        object.__setattr__(self, "warm", warm)
        object.__setattr__(self, "pinned", pinned)

    @property
    def released(self) -> bool:
        """Whether nothing of it is held there, nor being released."""
        if self.state is None or not self.serving:
            return True
        return self.state.phase in (Phase.RELEASED, Phase.FAILED) and not self.state.pinned_tokens


@dataclass(frozen=True)
class Crew:
    """The chosen pods, as far as it matters while a prefix is held.

    ``unsound`` are those that are not as good as they can be: warm and hard-pinned. Tokens and
    blocks are as the first of the warm pods that knows them reports, or of all if none is warm.
    """

    count: int
    warm: int
    unsound: tuple[Holding, ...]
    size: tuple[int, int]


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
