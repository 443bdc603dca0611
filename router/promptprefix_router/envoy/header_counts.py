"""How often each name was resolved by Envoy alone: what its counters say beyond what is counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.envoy.client_routes import CLIENT_ROUTES
from promptprefix_router.envoy.header_plan import HeaderPlan
from promptprefix_router.envoy.watched_file import WatchedFile
from promptprefix_router.metrics import RouterMetrics

COUNTS_FILE = "counted.json"
CLOCK_SLACK_S = 2.0
"""Envoy tells its age in whole seconds."""

_BEFORE = f"vhost.{CLIENT_ROUTES}.route."
_AFTER = ".upstream_rq_total"

STATS_FILTER = f"^{re.escape(_BEFORE)}.*{re.escape(_AFTER)}$"


class CountFormatError(ValueError):
    """Envoy's answer can't be read."""


class HeaderReading(msgspec.Struct, frozen=True):
    """Envoy's counters by name, and when it started, in Unix seconds."""

    started: float = 0.0
    counts: Mapping[str, int] = {}

    def since(self, earlier: HeaderReading) -> dict[str, int]:
        """Return the requests by name since an ``earlier`` reading.

        A counter that fell belongs to a new Envoy, or to a name that came back: it began anew.
        """
        same = abs(self.started - earlier.started) <= CLOCK_SLACK_S
        known = earlier.counts if same else {}
        found = {}
        for name, count in self.counts.items():
            before = known.get(name, 0)
            new = count - before if count >= before else count
            if new:
                found[name] = new
        return found


def parse_counts(body: str) -> dict[str, int]:
    """Read Envoy's ``/stats?format=text``; raise `CountFormatError`."""
    counts = {}
    for line in body.splitlines():
        stat, _, value = line.rpartition(": ")
        if stat.startswith(_BEFORE) and stat.endswith(_AFTER):
            try:
                counts[stat[len(_BEFORE) : -len(_AFTER)]] = int(value)
            except ValueError as error:
                raise CountFormatError("not the statistics of Envoy's admin listener") from error
    return counts


class HeaderCounts:
    """Counts each request once, also over restarts: a file remembers what was counted."""

    def __init__(self, folder: Path, tally: MatchTally, metrics: RouterMetrics) -> None:
        self._file = WatchedFile(folder / COUNTS_FILE)
        self._tally = tally
        self._metrics = metrics
        self._counted = self._recall()

    def take(self, reading: HeaderReading, plan: HeaderPlan) -> None:
        """Count what is new in ``reading``, by the plan in force.

        Raises `OSError` if that can't be remembered for a later picker.
        """
        new = reading.since(self._counted)
        for route in plan.routes:
            requests = new.get(route.name, 0)
            if requests:
                self._tally.note((route.id,), requests)
                self._metrics.resolved(route.outcome, requests)
        self._counted = reading
        if new:
            self._file.write(msgspec.json.encode(reading))

    def _recall(self) -> HeaderReading:
        try:
            return msgspec.json.decode(self._file.read() or b"{}", type=HeaderReading)
        except msgspec.MsgspecError:
            structlog.get_logger("envoy").warning("what was counted is forgotten", file=COUNTS_FILE)
            return HeaderReading()
