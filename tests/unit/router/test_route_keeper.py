"""What a new route table does, and what an empty one does not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from promptprefix_router.choosing.load_reader import LoadFormatError, parse_reading
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.route_keeper import EMPTY_GRACE_S, RouteKeeper
from promptprefix_router.envoy.client_routes import RouteRules
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.publisher import EnvoyPublisher
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

from .samples import TENANT, chooser, endpoint, prefix, table


@dataclass
class Stand:
    """A keeper with a clock of its own."""

    folder: Path
    now: float = 1000.0

    def __post_init__(self) -> None:
        """Build the parts."""
        memo = FingerprintMemo(4)
        self.metrics = RouterMetrics(memo, lambda: self.now)
        self.tally = MatchTally(time.time)
        self.picker = Picker(Matcher(memo), chooser(), self.tally, self.metrics, time.perf_counter)
        self.file = EndpointsFile(self.folder)
        publisher = EnvoyPublisher(self.file, RoutesFile(self.folder, RouteRules()), self.metrics)
        self.keeper = RouteKeeper(self.picker, publisher, self.metrics, TENANT, lambda: self.now)

    @property
    def known(self) -> list[str]:
        """Hosts by which the picker decides."""
        return [e.host for e in self.picker.routes.endpoints]

    def metric(self, line: str) -> bool:
        """Return whether the metrics have ``line``."""
        return f"promptprefix_router_{line}\n" in generate_latest(self.metrics.registry).decode()


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Return a keeper in an empty folder."""
    return Stand(tmp_path)


def test_a_table_goes_to_the_file_and_to_the_picker(stand: Stand) -> None:
    stand.keeper.accept(table(endpoint(1), endpoint(2, ready=False), prefixes=(prefix(),)))
    assert stand.known == ["10.0.0.1", "10.0.0.2"]
    assert not stand.file.empty
    assert stand.metric('endpoints{state="known"} 2.0')
    assert stand.metric('endpoints{state="ready"} 1.0')
    assert stand.metric("prefixes 1.0")


def test_the_age_counts_from_the_last_confirmation(stand: Stand) -> None:
    assert stand.metric("route_table_age_seconds +Inf")
    stand.keeper.accept(table(endpoint(1)))
    stand.now += 40
    assert stand.metric("route_table_age_seconds 40.0")
    stand.keeper.confirm()
    assert stand.metric("route_table_age_seconds 0.0")


def test_an_empty_pool_must_last(stand: Stand) -> None:
    stand.keeper.accept(table(endpoint(1)))
    stand.keeper.accept(table())
    stand.now += EMPTY_GRACE_S - 1
    stand.keeper.confirm()
    stand.keeper.accept(table(prefixes=(prefix(),)))
    assert stand.known == ["10.0.0.1"]
    stand.now += 1
    stand.keeper.confirm()
    assert stand.known == []
    assert stand.file.empty


def test_endpoints_that_come_back_end_the_wait(stand: Stand) -> None:
    stand.keeper.accept(table(endpoint(1)))
    stand.keeper.accept(table())
    stand.keeper.accept(table(endpoint(2)))
    stand.now += 2 * EMPTY_GRACE_S
    stand.keeper.confirm()
    assert stand.known == ["10.0.0.2"]


def test_what_the_operator_can_not_read_stays_and_grows_old(stand: Stand) -> None:
    stand.keeper.accept(table(endpoint(1), prefixes=(prefix(),)))
    blank = table().model_copy(update={"unknown": ("another", TENANT)})
    stand.keeper.accept(table())
    for _ in range(2):
        stand.keeper.accept(blank)
        stand.now += EMPTY_GRACE_S
        stand.keeper.confirm()
    assert stand.known == ["10.0.0.1"]
    assert not stand.file.empty
    assert stand.metric(f"route_table_age_seconds {2 * EMPTY_GRACE_S:.1f}")
    stand.keeper.accept(table(endpoint(2)))
    assert stand.known == ["10.0.0.2"]
    stand.keeper.accept(blank.model_copy(update={"unknown": ("another",)}))
    stand.now += EMPTY_GRACE_S
    stand.keeper.confirm()
    assert stand.known == []


def test_an_empty_pool_does_not_wipe_the_file_of_a_former_run(stand: Stand) -> None:
    stand.keeper.accept(table(endpoint(1)))
    successor = Stand(stand.folder)
    successor.keeper.accept(table())
    assert not successor.file.empty


def test_the_load_is_read_from_envoys_clusters() -> None:
    reading = parse_reading(
        b"""picker::127.0.0.1:9002::rq_active::5
engines::observability_name::engines
engines::default_priority::max_connections::1024
engines::10.0.0.1:8000::cx_active::9
engines::10.0.0.1:8000::rq_total::70
engines::10.0.0.1:8000::rq_active::3
engines::10.0.0.1:8000::health_flags::healthy
engines::[fd00::1]:8000::rq_active::0
engines::[fd00::1]:8000::rq_total::2
engines::[fd00::1]:8000::health_flags::/failed_active_hc/active_hc_timeout
engines::10.0.0.2:8000::rq_active::12
engines::10.0.0.2:8000::health_flags::/failed_outlier_check/failed_active_hc
engines::10.0.0.3:8000::health_flags::/failed_outlier_check
rewriter::127.0.0.1:9003::rq_total::1000
rewriter::127.0.0.1:9003::health_flags::/failed_active_hc
"""
    )
    assert reading.active == {"10.0.0.1:8000": 3, "10.0.0.2:8000": 12}
    assert reading.served == 72
    assert reading.unhealthy == {"[fd00::1]:8000", "10.0.0.2:8000"}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"[]",
        b"picker::127.0.0.1:9002::rq_active::5\n",
        b"engines::10.0.0.1:8000::rq_active::five\n",
    ],
)
def test_another_answer_is_no_reading(page: bytes) -> None:
    with pytest.raises(LoadFormatError):
        parse_reading(page)


def test_the_last_line_of_a_page_need_not_end() -> None:
    assert parse_reading(b"engines::10.0.0.1:8000::rq_active::12").active == {"10.0.0.1:8000": 12}


def test_a_pool_without_pods_is_an_empty_reading() -> None:
    assert parse_reading(b"engines::added_via_api::false\n").active == {}
