"""Whole fleets: where prompts are computed, and how busy engines get. Bounds, no timing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.matching.matcher import Match, MatchKind

from .fleet_simulation import BLOCK, Ask, Fleet
from .samples import DIGEST, MODEL

DECLARED = Match(MatchKind.FINGERPRINT, MODEL, frozenset({DIGEST}), ("id-1",), tokens=4000)


def prompts(
    count: int, rate: float, prefixes: int, tokens: int, share: float = 1.0, seed: int = 1
) -> list[Ask]:
    """Return requests, ``share`` of them with one of some prefixes, the rest with their own."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    at = 0.0
    asks = []
    for number in range(count):
        at += rng.expovariate(rate)
        common = rng.random() < share
        prefix = f"p{rng.randrange(prefixes)}" if common else f"own{number}"
        asks.append(Ask(at, ((prefix, tokens), (f"turn{number}", 200))))
    return asks


def tokens_computed(fleet: Fleet) -> int:
    """Return the tokens that all engines computed."""
    return sum(sum(engine.computed.values()) for engine in fleet.engines.values())


def imbalance(numbers: Sequence[int]) -> float:
    """Return the largest over the mean."""
    return max(numbers) / (sum(numbers) / len(numbers))


@pytest.mark.parametrize("tokens", [600, 2500])
def test_a_system_prompt_that_all_share_does_not_pull_all_traffic_to_one(tokens: int) -> None:
    fleet = Fleet(16)
    fleet.serve(prompts(2000, 40, 1, tokens))
    assert imbalance(fleet.served) < 1.1
    assert imbalance(fleet.most) < 1.3
    # Each computes it once and holds it from then on.
    assert [engine.computed["/p0"] for engine in fleet.engines.values()] == [
        tokens // BLOCK * BLOCK
    ] * 16


def test_a_long_prompt_that_all_share_stays_where_it_is_within_the_bound() -> None:
    fleet = Fleet(16)
    fleet.serve(prompts(2000, 40, 1, 20_000))
    mean = sum(fleet.most) / 16
    assert max(fleet.most) <= 1.25 * 1.25 * mean + 8
    assert 4 <= fleet.computed("p0") <= 16


def test_a_quarter_that_shares_a_prefix_overloads_nobody_of_hundreds() -> None:
    fleet = Fleet(100)
    fleet.serve(prompts(3000, 300, 1, 4000, share=0.25))
    assert max(fleet.most) <= 1.25 * sum(fleet.most) / 100 + 8
    assert imbalance(fleet.served) < 2
    assert fleet.computed("p0") < 40


@pytest.mark.parametrize("choosers", [1, 3])
def test_a_cold_burst_of_one_prefix_lands_together(choosers: int) -> None:
    fleet = Fleet(32, choosers=choosers)
    burst = [Ask(0.001 * n, (("p0", 6000), (f"turn{n}", 200))) for n in range(8)]
    fleet.serve(burst)
    assert fleet.computed("p0") == 1
    assert fleet.outcomes[Outcome.HASHED] == choosers
    assert fleet.outcomes[Outcome.SEEN] == 8 - choosers


def test_many_cold_bursts_land_on_different_engines() -> None:
    fleet = Fleet(16)
    asks = [
        Ask(0.001 * (8 * prefix + n), ((f"p{prefix}", 6000), (f"turn{prefix}.{n}", 200)))
        for prefix in range(16)
        for n in range(8)
    ]
    fleet.serve(asks)
    assert sum(fleet.computed(f"p{prefix}") for prefix in range(16)) <= 16 * 2
    assert imbalance(fleet.most) <= 1.25 * 1.25 + 8 / 8


def test_prefixes_are_computed_far_less_often_than_by_load_alone() -> None:
    asks = prompts(1500, 40, 40, 4000)
    ours, by_load = Fleet(16), Fleet(16, approximate=False)
    ours.serve(asks)
    by_load.serve(asks)
    assert tokens_computed(ours) < 0.4 * tokens_computed(by_load)
    assert imbalance(ours.served) < 1.4
    assert sum(ours.waits) < sum(by_load.waits)


def test_prompts_that_nobody_shares_are_spread_almost_as_by_load() -> None:
    fleet = Fleet(16)
    fleet.serve(prompts(1500, 30, 1, 3000, share=0.0))
    assert imbalance(fleet.served) < 1.15
    assert imbalance(fleet.most) < 1.3
    assert set(fleet.outcomes) == {Outcome.HASHED}


def test_talks_stay_where_they_began() -> None:
    rng = random.Random(3)  # noqa: S311 - a simulation
    asks = []
    for talk in range(150):
        at = rng.random() * 60
        pieces: tuple[tuple[str, int], ...] = (("system", 1500),)
        for number in range(6):
            pieces = (*pieces, (f"talk{talk}.{number}", 600))
            asks.append(Ask(at, pieces))
            at += 5 + rng.random() * 5
    ours, by_load = Fleet(8), Fleet(8, approximate=False)
    ours.serve(asks)
    by_load.serve(asks)
    assert tokens_computed(ours) < 0.45 * tokens_computed(by_load)
    assert imbalance(ours.served) < 1.4


def test_a_hot_declared_prefix_spills_from_each_full_engine_alone() -> None:
    fleet = Fleet(16, warm={1: (DIGEST,), 2: (DIGEST,), 3: (DIGEST,)})
    asks = [Ask(ask.at, ask.pieces, match=DECLARED) for ask in prompts(1500, 20, 1, 4000)]
    fleet.serve(asks)
    spilled = fleet.outcomes[Outcome.SPILL]
    assert 0 < spilled < 0.8 * len(asks)
    assert fleet.outcomes[Outcome.WARM] == len(asks) - spilled
    assert max(fleet.most) <= 1.25 * 1.25 * sum(fleet.most) / 16 + 8


def test_a_declared_prefix_with_little_traffic_never_leaves_its_engines() -> None:
    fleet = Fleet(16, warm={1: (DIGEST,), 2: (DIGEST,)})
    asks = [Ask(ask.at, ask.pieces, match=DECLARED) for ask in prompts(600, 1, 1, 4000)]
    fleet.serve(asks)
    assert fleet.outcomes == {Outcome.WARM: 600}
    assert abs(fleet.served[0] - fleet.served[1]) < 60


@pytest.mark.parametrize("choosers", [2, 4])
def test_several_choosers_compute_little_more_than_one(choosers: int) -> None:
    asks = prompts(1500, 40, 40, 4000)
    one, several = Fleet(16), Fleet(16, choosers=choosers)
    one.serve(asks)
    several.serve(asks)
    assert tokens_computed(several) < 1.4 * tokens_computed(one)


def test_several_choosers_see_each_others_load_by_the_engines_numbers() -> None:
    asks = prompts(2000, 40, 1, 2500)
    seeing, blind = Fleet(16, choosers=4), Fleet(16, choosers=4, engines_read=False)
    seeing.serve(asks)
    blind.serve(asks)
    assert imbalance(seeing.served) < 1.3
    assert imbalance(blind.served) > 2


def short_asks(rate: float, answer: int, until: float = 20.0) -> list[Ask]:
    """Return declared requests of a few tokens; the first ones are so rare that caches fill."""
    rng = random.Random(5)  # noqa: S311 - a simulation
    times = [float(number // 2) for number in range(8)]
    while times[-1] < until:
        times.append(times[-1] + rng.expovariate(rate))
    return [
        Ask(at, (("p0", 4032), (f"turn{number}", 10)), answer, DECLARED)
        for number, at in enumerate(times)
    ]


@pytest.mark.parametrize("reading_s", [0.1, 1.0])
@pytest.mark.parametrize("answer", [1, 2])
def test_short_requests_that_ended_drive_none_away(answer: int, reading_s: float) -> None:
    """Each of two warm engines of 40 is sent 100 a second, of 20 or 35 ms.

    By chance both are full for a moment, now and then.
    """
    warm = {1: (DIGEST,), 2: (DIGEST,)}
    fleet = Fleet(40, warm=warm, reading_s=reading_s, count_from_s=8)
    fleet.serve(short_asks(200, answer))
    assert fleet.outcomes.total() > 2000
    assert fleet.outcomes[Outcome.SPILL] < 0.01 * fleet.outcomes.total()
    assert imbalance(fleet.served[:2]) < 1.1


@pytest.mark.parametrize("reading_s", [0.1, 1.0])
def test_short_requests_that_pile_up_spill(reading_s: float) -> None:
    """Two warm engines would have to do twice of what they can."""
    fleet = Fleet(40, warm={1: (DIGEST,), 2: (DIGEST,)}, reading_s=reading_s)
    asks = short_asks(2000, 1, until=7)
    fleet.serve(asks)
    assert fleet.outcomes[Outcome.SPILL] > 0.4 * len(asks)
    assert max(fleet.most) <= 1.25 * sum(fleet.most) / 40 + 8
