"""Places on the ring."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_router.choosing.ring import Ring, place_of


def ring(*numbers: int) -> Ring:
    """Return a ring with these endpoints on the seats of their numbers."""
    return Ring({f"10.0.0.{number}:8000": number for number in numbers})


PLACES = [place_of(b"%d" % number) for number in range(400)]


def test_a_place_is_the_same_in_every_process() -> None:
    assert place_of(b"prompt") == 13_262_977_411_084_900_045
    assert ring(1, 2, 3).first(place_of(b"prompt"), 0b1110, 3) == [3, 2, 1]


@given(
    among=st.sets(st.integers(0, 39), min_size=1),
    place=st.integers(0, 2**64 - 1),
    count=st.integers(1, 4),
)
def test_few_and_many_are_found_in_the_same_order(among: set[int], place: int, count: int) -> None:
    """Those of the mask, as if nobody else were on the ring."""
    mask = sum(1 << seat for seat in among)
    found = ring(*range(40)).first(place, mask, count)
    assert found == ring(*among).first(place, mask, count)
    assert len(found) == min(count, len(among))
    assert set(found) <= among
    assert len(set(found)) == len(found)


def test_an_endpoint_that_leaves_moves_only_its_own() -> None:
    whole, without = ring(*range(40)), ring(*range(39))
    mask = (1 << 40) - 1
    for place in PLACES:
        first, second = whole.first(place, mask, 2)
        assert without.first(place, mask >> 1, 1) == [second if first == 39 else first]


def test_no_endpoint_has_much_more_than_its_share() -> None:
    whole = ring(*range(10))
    found = [whole.first(place, 0b1111111111, 1)[0] for place in PLACES]
    assert max(found.count(seat) for seat in range(10)) < 2.5 * len(PLACES) / 10
    assert min(found.count(seat) for seat in range(10)) > 0.3 * len(PLACES) / 10


def test_an_empty_ring_has_nobody() -> None:
    assert Ring({}).first(5, 0, 3) == []
