"""What the number of a batch says about those before it."""

from __future__ import annotations

import pytest

from promptprefix_sidecar.kv_events.sequence import Arrival, BatchOrder


def seen(*numbers: int, replayed: range = range(0)) -> BatchOrder:
    order = BatchOrder()
    for number in numbers:
        order.take(number, float(number), replayed=number in replayed)
    return order


@pytest.mark.parametrize(
    ("order", "number", "at", "arrival"),
    [
        (seen(), 7, 0.0, Arrival.NEXT),
        (seen(0, 1), 2, 2.0, Arrival.NEXT),
        (seen(0, 1), 2, 0.5, Arrival.NEXT),
        (seen(0, 1), 4, 4.0, Arrival.GAP),
        (seen(0, 1, 2), 1, 1.0, Arrival.RESET),
        (seen(0, 1, 2), 0, 9.0, Arrival.RESET),
        (seen(0, 1, 2, 3, replayed=range(1, 3)), 2, 2.0, Arrival.REPEATED),
        (seen(0, 1, 2, 3, replayed=range(1, 3)), 2, None, Arrival.REPEATED),
        (seen(0, 1, 2, 3, replayed=range(1, 3)), 1, 9.0, Arrival.RESET),
        (seen(0, 1, 2, 3, replayed=range(1, 3)), 3, 3.0, Arrival.RESET),
        (seen(0, 1, 2, 3, replayed=range(1, 3)), 0, 0.0, Arrival.RESET),
    ],
)
def test_arrivals(order: BatchOrder, number: int, at: float | None, arrival: Arrival) -> None:
    before = order.expected
    assert order.look(number, at) is arrival
    assert order.expected == before


def test_a_batch_that_can_not_be_read_has_its_place_all_the_same() -> None:
    order = seen(0)
    order.take(1, None)
    assert order.expected == 2
