"""When requests of users matched, by the operator's clock: the clocks of pods may be wrong."""

from __future__ import annotations

from promptprefix.wire import PlacementState, SidecarState

SAME_S = 2.0
"""Reports take a while to arrive: a match must be later than the one before by this much."""


def with_own_times(
    state: SidecarState, sent: float | None, now: float, before: SidecarState | None
) -> SidecarState:
    """Return a report with the times of its matches by the operator's clock, none after ``now``.

    ``sent`` is the pod's clock at sending: ages count by it. Without it the times are taken as they
    are told. ``before`` is the report that was returned last: where a placement was not matched
    again it says the same. All are Unix seconds.
    """
    known = {} if before is None else {each.id: each.last_hit for each in before.placements}
    placements = tuple(_own(each, sent, now, known.get(each.id)) for each in state.placements)
    if all(own is told for own, told in zip(placements, state.placements, strict=True)):
        return state
    return state.model_copy(update={"placements": placements})


def _own(
    state: PlacementState, sent: float | None, now: float, known: float | None
) -> PlacementState:
    hit = state.last_hit
    if hit is None:
        return state
    if sent is not None:
        # A match that is yet to come, by the clock that dated it, was just now: at worst it holds
        # the prefix for too long.
        hit = max(0.0, now - max(0.0, sent - hit))
        if known is not None and hit < known + SAME_S:
            hit = known
    hit = min(hit, now)
    return state if hit == state.last_hit else state.model_copy(update={"last_hit": hit})
