"""The loop and times that are not true: of pods, of people and of what was written before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.wire import Phase
from tests.unit.operator.test_controller_windows import EDGE, OFFICE, Bench, Clock

NEVER = datetime.max.replace(tzinfo=UTC)
FALSE = 1e18


def test_a_false_match_ends_no_pass_and_is_written_as_of_now() -> None:
    clock = Clock(EDGE)
    bench = Bench(clock, idleTTL="10m")
    bench.controller.step()
    bench.report(phase=Phase.WARM, last_hit=FALSE)
    bench.controller.step()
    [written] = bench.status.versions
    assert written.lastMatched == EDGE
    assert bench.told()["Active"] == ("True", "InUse")

    bench.declare(content={"inline": {"systemInstructions": "y"}})
    bench.controller.step()
    clock.time += timedelta(seconds=5)
    for passes in (4, 5):
        bench.controller.step()
        assert bench.publication.passes == passes
        bench.report(phase=Phase.WARM, last_hit=FALSE)
    assert [each.retained for each in bench.set] == [False, True]


def test_a_status_of_times_to_come_ends_no_pass() -> None:
    clock = Clock(EDGE)
    before = Bench(clock)
    before.controller.step()
    before.report(phase=Phase.WARM, last_hit=FALSE)
    before.controller.step()
    [version] = before.status.versions
    false = version.model_copy(update=dict.fromkeys(("lastMatched", "since"), NEVER))
    bench = Bench(clock, idleTTL="10m")
    bench.declare(before.status.model_copy(update={"versions": [false]}))
    bench.controller.step()
    [seen] = bench.status.versions
    assert seen.lastMatched == EDGE
    assert bench.publication.passes == 1


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59Z", "9999-12-31T12:00:00Z"])
@pytest.mark.parametrize(
    ("key", "told"), [(WARM_NOW, ("True", "WarmNow")), (UNPIN, ("False", "Unpinned"))]
)
def test_an_order_until_the_last_day_of_all_is_one_without_an_end(
    key: str, told: tuple[str, str], end: str
) -> None:
    bench = Bench(Clock(EDGE - timedelta(hours=1)), windows=[OFFICE], idleTTL="10m")
    bench.declare(annotations={key: end})
    bench.controller.step()
    assert bench.publication.passes == 1
    assert bench.told()["Active"] == told
    assert bench.status.nextTransitionTime is None


def test_restarts_wait_for_matches_that_were_not_written_but_write_none() -> None:
    clock = Clock(EDGE)
    bench = Bench(clock, idleTTL="10m")
    bench.controller.step()
    bench.report(phase=Phase.WARM, last_hit=EDGE.timestamp())
    bench.controller.step()
    for minutes, told in ((11, ("True", "InUse")), (12, ("False", "Idle"))):
        clock.time += timedelta(minutes=minutes)
        written = bench.status
        bench = Bench(clock, idleTTL="10m")
        bench.declare(written)
        bench.controller.step()
        bench.report(phase=Phase.WARM)
        bench.controller.step()
        assert bench.told()["Active"] == told
        assert [each.lastMatched for each in bench.status.versions] == [EDGE]


@pytest.mark.parametrize("skew", [0, 660, 86_400, -18_000])
def test_a_prefix_that_is_matched_is_held_whatever_the_clock_of_its_pod_says(skew: float) -> None:
    clock = Clock(EDGE)
    bench = Bench(clock, idleTTL="10m")
    bench.controller.step()
    for _ in range(5):
        clock.time += timedelta(minutes=5)
        told = clock.time.timestamp() - skew
        bench.report(sent=told, phase=Phase.WARM, last_hit=told - 1)
        bench.controller.step()
        assert bench.told()["Active"] == ("True", "InUse")
    last = clock.time
    clock.time += timedelta(minutes=11)
    bench.report(sent=told + 660, phase=Phase.WARM, last_hit=told - 1)
    bench.controller.step()
    assert bench.told()["Active"] == ("False", "Idle")
    [written] = bench.status.versions
    assert written.lastMatched is not None
    assert written.lastMatched <= last
