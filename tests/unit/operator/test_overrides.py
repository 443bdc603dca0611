"""Orders of a person on call, as annotations say them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.fleet import Override
from promptprefix_operator.overrides import override_in

EVENING = datetime(2026, 11, 30, 18, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "order"),
    [
        ("true", Override()),
        (" true\n", Override()),
        ("false", None),
        ("", None),
        ("2026-11-30T18:00:00Z", Override(EVENING)),
        ("2026-11-30t18:00:00z", Override(EVENING)),
        ("2026-11-30T19:00:00+01:00", Override(EVENING)),
        ("2026-11-30T12:30:00-05:30", Override(EVENING)),
        ("2026-11-30T18:00:00.5Z", Override(EVENING.replace(microsecond=500_000))),
    ],
)
def test_an_order(value: str, order: Override | None) -> None:
    assert override_in({WARM_NOW: value}, WARM_NOW) == (order, "")


def test_no_annotation_asks_for_nothing() -> None:
    assert override_in({WARM_NOW: "true"}, UNPIN) == (None, "")


@pytest.mark.parametrize(
    "value",
    [
        "yes",
        "True",
        "2h",
        "2026-11-30",
        "2026-11-30T18:00:00",
        "2026-11-30 18:00:00Z",
        "2026-13-30T18:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1764525600",
    ],
)
def test_what_can_not_be_understood_asks_for_nothing_and_is_told(value: str) -> None:
    order, note = override_in({UNPIN: value}, UNPIN)

    assert order is None
    assert UNPIN in note
    assert "2030-01-31T18:00:00Z" in note
