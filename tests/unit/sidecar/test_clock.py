"""When tokens are checked again."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from promptprefix_sidecar.clock import Moment, next_check

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("local", "until"),
    [
        (datetime(2026, 7, 1, 12, 0, tzinfo=BERLIN), 300.0),
        (datetime(2026, 7, 1, 23, 58, tzinfo=BERLIN), 122.0),
        (datetime(2026, 7, 1, 23, 59, 59, tzinfo=BERLIN), 3.0),
        (datetime(2026, 7, 2, 0, 0, 2, tzinfo=BERLIN), 300.0),
    ],
)
def test_after_the_interval_or_just_after_midnight(local: datetime, until: float) -> None:
    moment = Moment(now=50.0, wall=local.timestamp())
    assert next_check(moment, 300.0, BERLIN) == pytest.approx(50.0 + until)


def test_a_day_with_a_change_of_the_clock_ends_at_its_own_midnight() -> None:
    before = datetime(2026, 10, 25, 0, 30, tzinfo=BERLIN)  # this day has 25 hours
    moment = Moment(now=0.0, wall=before.timestamp())
    assert next_check(moment, 1e9, BERLIN) == pytest.approx(24.5 * 3600 + 2)


def test_the_zone_of_the_process_is_the_default() -> None:
    moment = Moment(now=0.0, wall=datetime(2026, 7, 1, 23, 59).astimezone().timestamp())
    assert next_check(moment, 300.0) == pytest.approx(62.0)
