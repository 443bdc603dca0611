"""Peak windows by the clock alone: cold before, warm in the lead time, released at the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from e2e.life.stand import Life, instant, sleep_until
from e2e.life.texts import text
from e2e.operator_stand import conditions

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

LEAD_S = 10
OPEN_S = 15
TOLERANCE_S = 2.0
"""The planner's own waiting, and the write of a status; times in the status are exact."""
TEXT = text("harbour timetables")


async def test_a_window_opens_and_closes_on_time(stand: Life) -> None:
    start = _next_minute(LEAD_S + 8)
    window = {
        "name": "rush",
        "schedule": f"{start.minute} {start.hour} * * *",
        "duration": f"{OPEN_S}s",
        "leadTime": f"{LEAD_S}s",
    }
    stand.apply("timed", TEXT, windows=[window])
    await stand.until("timed", "Active", ("False", "OutsideWindows"))
    await stand.until("timed", "Ready", ("True", "Released"))
    status = stand.status("timed")
    assert (status["activeWindow"], status["warmPods"]) == ("", 0)
    lead = start - timedelta(seconds=LEAD_S)
    assert instant(status["nextTransitionTime"]) == lead.timestamp()
    assert await stand.pods[0].metric("pinned_blocks") == 0

    await sleep_until(lead.timestamp())
    await stand.until("timed", "Warm", ("True", "Warm"))
    status = stand.status("timed")
    assert status["activeWindow"] == "", "it is not open yet"
    end = start + timedelta(seconds=OPEN_S)
    assert instant(status["nextTransitionTime"]) == end.timestamp()
    assert abs(_flipped(stand) - lead.timestamp()) <= TOLERANCE_S
    assert time.time() < start.timestamp(), "warm before the window opens"
    assert await stand.pods[0].cached_tokens(TEXT, "When?") == status["tokens"] > 0
    await sleep_until(start.timestamp())
    await stand.until("timed", "Active", ("True", "InWindow"))
    assert stand.status("timed")["activeWindow"] == "rush"

    await sleep_until(end.timestamp())
    await stand.until("timed", "Active", ("False", "OutsideWindows"))
    assert abs(_flipped(stand) - end.timestamp()) <= TOLERANCE_S
    await stand.until("timed", "Ready", ("True", "Released"))
    assert await stand.pods[0].metric("pinned_blocks") == 0
    tomorrow = lead + timedelta(days=1)
    assert instant(stand.status("timed")["nextTransitionTime"]) == tomorrow.timestamp()


async def test_a_person_on_call_overrules_windows(stand: Life) -> None:
    away = _next_minute(3600)
    window = {"name": "later", "schedule": f"{away.minute} {away.hour} * * *", "duration": "1m"}
    stand.apply("called", TEXT, windows=[window])
    await stand.until("called", "Ready", ("True", "Released"))
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
    stand.annotate("called", f"promptprefix.dev/warm-now={end.isoformat()}")
    await stand.until("called", "Active", ("True", "WarmNow"))
    await stand.until("called", "Warm", ("True", "Warm"))
    assert stand.status("called")["pinnedPods"] == 1
    stand.annotate("called", "promptprefix.dev/unpin=true")
    await stand.until("called", "Active", ("False", "Unpinned"))
    await stand.until_unpinned(stand.pods[0])
    stand.annotate("called", "promptprefix.dev/unpin-")
    await stand.until("called", "Active", ("True", "WarmNow"))
    await sleep_until(end.timestamp())
    await stand.until("called", "Active", ("False", "OutsideWindows"))
    assert abs(_flipped(stand, "called") - end.timestamp()) <= TOLERANCE_S


def _next_minute(seconds_ahead: float) -> datetime:
    """Return the first whole minute that is at least so far ahead."""
    earliest = datetime.now(UTC) + timedelta(seconds=seconds_ahead)
    return earliest.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _flipped(stand: Life, name: str = "timed") -> float:
    """Return when Active changed last, as the operator wrote it."""
    return instant(conditions(stand.server, name)["Active"]["lastTransitionTime"])
