"""The demo as a user runs it; what it proves is asserted, how long it took is not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from e2e.demo.__main__ import REPORT

pytestmark = pytest.mark.timeout(3600)

TIMES = (
    "ttft_cold_ms",
    "ttft_warm_ms",
    "apply_to_warm_s",
    "cold_prefill_s",
    "rewarm_s",
    "restart_rewarm_s",
)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Run the demo once and return what it wrote."""
    REPORT.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "e2e.demo"], check=True, timeout=3500)
    return dict(json.loads(REPORT.read_text()))


def test_pins_hold_and_what_is_not_pinned_goes(report: dict[str, Any]) -> None:
    assert report["pinned_survived"] == 1
    assert report["unpinned_survived"] <= 0.1


def test_declared_requests_are_routed_to_warm_pods_and_cached(report: dict[str, Any]) -> None:
    assert report["prefix_tokens"] >= 1500
    assert report["routed_warm_share"] == 1
    assert report["cached_token_share"] >= 0.95
    assert report["prefill_reduction"] > 0


def test_a_deleted_prefix_leaves_nothing_pinned(report: dict[str, Any]) -> None:
    assert report["deleted_unpinned"] is True


def test_memory_stays_within_its_bounds(report: dict[str, Any]) -> None:
    assert 0 < report["rss_mb"]["operator"] <= 150
    assert 0 < report["rss_mb"]["sidecar"] <= 90
    assert 0 < report["rss_mb"]["picker"] <= 120


@pytest.mark.parametrize("name", TIMES)
def test_every_time_was_measured(report: dict[str, Any], name: str) -> None:
    assert report[name] > 0


def test_every_stage_has_its_seconds(report: dict[str, Any]) -> None:
    assert len(report["stage_seconds"]) >= 9
    assert all(seconds > 0 for seconds in report["stage_seconds"].values())
