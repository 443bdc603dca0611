"""Whole fleets in the precise mode: where prompts are computed, and how busy engines get."""

from __future__ import annotations

import random

import pytest

from promptprefix_router.choosing.chooser import Outcome

from .fleet_simulation import BLOCK, Ask, Fleet
from .test_fleet import imbalance, prompts, tokens_computed


@pytest.mark.parametrize("tokens", [640, 2560])
def test_a_system_prompt_that_all_share_does_not_pull_all_traffic_to_one(tokens: int) -> None:
    fleet = Fleet(16, precise=True)
    fleet.serve(prompts(1500, 40, 1, tokens))
    assert imbalance(fleet.served) < 1.15
    assert imbalance(fleet.most) < 1.3
    # Each computes it once and holds it from then on.
    assert [engine.computed["/p0"] for engine in fleet.engines.values()] == [tokens] * 16


def test_a_long_prompt_that_all_share_stays_where_it_is_within_the_bound() -> None:
    fleet = Fleet(16, precise=True)
    fleet.serve(prompts(1500, 40, 1, 20_032))
    mean = sum(fleet.most) / 16
    assert max(fleet.most) <= 1.25 * 1.25 * mean + 8
    assert 4 <= fleet.computed("p0") <= 16


@pytest.mark.parametrize("choosers", [1, 3])
def test_a_cold_burst_of_one_prefix_lands_together(choosers: int) -> None:
    """No event tells of it before the last of the burst is sent."""
    fleet = Fleet(32, choosers=choosers, precise=True)
    burst = [Ask(0.001 * n, (("p0", 6016), (f"turn{n}", 192))) for n in range(8)]
    fleet.serve(burst)
    assert fleet.computed("p0") == 1
    assert fleet.outcomes == {Outcome.HASHED: choosers, Outcome.HELD: 8 - choosers}


def test_many_cold_bursts_land_on_different_engines() -> None:
    fleet = Fleet(16, precise=True)
    asks = [
        Ask(0.001 * (8 * prefix + n), ((f"p{prefix}", 6016), (f"turn{prefix}.{n}", 192)))
        for prefix in range(16)
        for n in range(8)
    ]
    fleet.serve(asks)
    assert sum(fleet.computed(f"p{prefix}") for prefix in range(16)) <= 16 * 2
    assert imbalance(fleet.most) <= 1.25 * 1.25 + 8 / 8


def talks(count: int, turns: int, seed: int = 3) -> list[Ask]:
    """Return talks that share a system text, some turns each."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    asks = []
    for talk in range(count):
        at = rng.random() * 60
        pieces: tuple[tuple[str, int], ...] = (("system", 1536),)
        for number in range(turns):
            pieces = (*pieces, (f"talk{talk}.{number}", 640))
            asks.append(Ask(at, pieces))
            at += 5 + rng.random() * 5
    return asks


def test_talks_stay_where_they_began() -> None:
    ours, by_load = Fleet(8, precise=True), Fleet(8, approximate=False)
    asks = talks(150, 6)
    ours.serve(asks)
    by_load.serve(asks)
    assert tokens_computed(ours) < 0.45 * tokens_computed(by_load)
    assert imbalance(ours.served) < 1.5


def test_several_choosers_know_what_the_others_sent() -> None:
    """Each turn of a talk comes by another chooser; an estimate knows its own turns alone."""
    asks = talks(100, 6)
    one, several = Fleet(8, precise=True), Fleet(8, choosers=4, precise=True)
    estimating = Fleet(8, choosers=4)
    for fleet in (one, several, estimating):
        fleet.serve(asks)
    assert tokens_computed(several) < 1.1 * tokens_computed(one)
    assert tokens_computed(several) < 0.6 * tokens_computed(estimating)


def test_after_a_reset_the_next_turn_is_not_drawn_there() -> None:
    fleet = Fleet(8, precise=True)
    first = Ask(0.0, (("talk", 8 * BLOCK * 8), ("one", 128)))
    fleet.serve([first])
    (address,) = (name for name, engine in fleet.engines.items() if engine.served)
    second = Ask(30.0, (*first.pieces, ("two", 128)))
    fleet.serve([second])
    assert fleet.outcomes == {Outcome.HASHED: 1, Outcome.HELD: 1}
    fleet.reset(address)
    fleet.serve([Ask(60.0, (*second.pieces, ("three", 128)))])
    assert fleet.outcomes[Outcome.HELD] == 1
    assert fleet.outcomes[Outcome.HASHED] == 2
