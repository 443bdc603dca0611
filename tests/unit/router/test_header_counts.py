"""Requests that Envoy resolved alone are counted once, whatever restarts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.envoy.header_counts import (
    COUNTS_FILE,
    CountFormatError,
    HeaderCounts,
    HeaderReading,
    parse_counts,
)
from promptprefix_router.envoy.header_plan import plan_headers
from promptprefix_router.matching.matcher import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics

from .samples import DIGEST, endpoint, prefix, routes

TABLE = routes(
    endpoint(1, warm=(DIGEST,)),
    prefixes=(prefix("a", id="id-a"), prefix("b", id="id-b", token_digests=("cold",))),
)
PLAN = plan_headers(TABLE)


@dataclass
class Stand:
    """Counts of one picker."""

    folder: Path

    def __post_init__(self) -> None:
        """Build the parts."""
        self.tally = MatchTally(time.time)
        self.tally.retain(TABLE.ids)
        self.metrics = RouterMetrics(FingerprintMemo(1), time.monotonic)
        self.counts = HeaderCounts(self.folder, self.tally, self.metrics)

    def take(self, started: float = 1000.0, **counts: int) -> dict[str, int]:
        """Take a reading; return what is counted by now."""
        self.counts.take(HeaderReading(started, counts), PLAN)
        return {match.id: match.count for match in self.tally.untold(99)}

    def decisions(self, outcome: str) -> str:
        """Return what the metric says."""
        page = generate_latest(self.metrics.registry).decode()
        name = f'decisions_total{{match="header",outcome="{outcome}"}} '
        return next(line for line in page.splitlines() if name in line).rpartition(" ")[2]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Return counts that start from nothing."""
    return Stand(tmp_path)


def test_only_what_is_new_counts(stand: Stand) -> None:
    assert stand.take(a=3, b=1) == {"id-a": 3, "id-b": 1}
    assert stand.take(a=3, b=1) == {"id-a": 3, "id-b": 1}
    assert stand.take(a=5, b=1) == {"id-a": 5, "id-b": 1}
    assert (stand.decisions("warm"), stand.decisions("cold")) == ("5.0", "1.0")


def test_a_name_that_is_not_planned_counts_for_nothing(stand: Stand) -> None:
    assert stand.take(unknown=7) == {}
    assert stand.take(unknown=8, a=1) == {"id-a": 1}


@pytest.mark.parametrize("after", [2, 5, 9])
def test_envoy_began_anew(stand: Stand, after: int) -> None:
    """Its counters count from nothing, however many requests there were since."""
    stand.take(a=5)
    assert stand.take(started=1060.0, a=after) == {"id-a": 5 + after}


def test_a_counter_that_fell_began_anew(stand: Stand) -> None:
    """A name left the routes and came back."""
    stand.take(a=5)
    assert stand.take(a=2) == {"id-a": 7}
    stand.take()
    assert stand.take(a=2) == {"id-a": 9}


def test_envoys_age_is_told_in_whole_seconds(stand: Stand) -> None:
    stand.take(started=1000.0, a=5)
    assert stand.take(started=1000.9, a=6) == {"id-a": 6}


def test_a_later_picker_counts_on(stand: Stand) -> None:
    stand.take(a=5)
    assert Stand(stand.folder).take(a=8) == {"id-a": 3}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"counts":{"a":"x"}}'])
def test_a_broken_memory_is_none(stand: Stand, content: bytes) -> None:
    (stand.folder / COUNTS_FILE).write_bytes(content)
    assert Stand(stand.folder).take(a=2) == {"id-a": 2}


def test_nothing_new_is_not_written(stand: Stand) -> None:
    stand.take(a=5)
    (stand.folder / COUNTS_FILE).unlink()
    stand.take(a=5)
    assert not (stand.folder / COUNTS_FILE).exists()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "picker", "envoy"])), max_size=12)
)
def test_the_sum_is_right_over_restarts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    stand, started, counter, sent, counted = Stand(folder), 0.0, 0, 0, 0
    for requests, restarted in steps:
        if restarted == "envoy":
            started, counter = started + 10.0, 0
        if restarted == "picker":
            counted += sum(match.count for match in stand.tally.untold(9))
            stand = Stand(folder)
        counter += requests
        sent += requests
        stand.take(started, **({"a": counter} if counter else {}))
    assert counted + sum(match.count for match in stand.tally.untold(9)) == sent


def test_envoys_statistics_are_read() -> None:
    page = (
        "vhost.clients.route.a.b-1.upstream_rq_total: 12\n"
        "vhost.clients.route.c.upstream_rq_total: 0\n"
        "vhost.clients.route.c.upstream_rq_retry: 4\n"
        "cluster.engines.upstream_rq_total: 9\n"
    )
    assert parse_counts(page) == {"a.b-1": 12, "c": 0}
    assert parse_counts("") == {}
    with pytest.raises(CountFormatError):
        parse_counts("vhost.clients.route.c.upstream_rq_total: many\n")
