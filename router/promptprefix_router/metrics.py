"""The picker's metrics. Labels come from fixed sets, never from a client's text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sized

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from promptprefix_router.choosing.chooser import Outcome, SpillReason, UndeclaredMode
from promptprefix_router.control.routes import Routes
from promptprefix_router.decision import COMMAND, Decision
from promptprefix_router.doors.http_door import HttpRequest, HttpResponse
from promptprefix_router.matching.matcher import MatchKind
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.rewriting.respelling import RewriteResult

NAMESPACE = "promptprefix_router"
_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2)


class _MemoUse(Collector):
    def __init__(self, memo: FingerprintMemo) -> None:
        self._memo = memo

    def collect(self) -> Iterator[Metric]:
        """Give the memo's own counts as counters."""
        for name, text, value in (
            ("memo_hits", "Fingerprints taken from memory.", self._memo.hits),
            ("memo_misses", "Fingerprints computed.", self._memo.misses),
        ):
            yield CounterMetricFamily(f"{NAMESPACE}_{name}", text, value=value)


class RouterMetrics:
    """Everything that the picker counts, in a registry of its own."""

    def __init__(
        self,
        memo: FingerprintMemo,
        clock: Callable[[], float],
        pool_known: Callable[[], bool] = lambda: False,
        counted: Callable[[], int] = lambda: 0,
        history: Sized = (),
        mode: UndeclaredMode = UndeclaredMode.APPROXIMATE,
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        self._pool_known = pool_known
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._clock = clock
        self._confirmed_at = -math.inf
        self._make_of_requests()
        self._make_of_the_operator()
        self._make_of_texts()
        self._make_of_envoy_and_engines()
        self.registry.register(_MemoUse(memo))
        self._show("memo_entries", "Remembered fingerprints.", lambda: len(memo))
        self._show(
            "foreign_requests", "Requests on the engines that came by others, as last read.", others
        )
        self._show("counted_versions", "Versions of prefixes whose matches are counted.", counted)
        self._show(
            "history_chunks",
            "Remembered chunks of prompts, by endpoint.",
            lambda: len(history),
        )
        self._modes = self._gauge(
            "undeclared_mode", "How undeclared prompts are routed: 1.", "mode"
        )
        wanted = self._gauge(
            "undeclared_mode_wanted", "How undeclared prompts are to be routed: 1.", "mode"
        )
        for each in UndeclaredMode:
            wanted.labels(each).set(each is mode)
        # What is precise needs pods that tell of their blocks first.
        self.in_force(UndeclaredMode.APPROXIMATE if mode is UndeclaredMode.PRECISE else mode)

    def _make_of_requests(self) -> None:
        self._decisions = self._counter(
            "decisions", "Decisions by how a request matched and what came of it.", "match outcome"
        )
        # Looking labels up takes longer than counting; there are as many as there are words.
        self._decided: dict[tuple[str, str], Counter] = {}
        for kind in MatchKind:
            for outcome in Outcome:
                if outcome is not Outcome.REFUSED:
                    self._decisions.labels(kind, outcome)
        self._decisions.labels(COMMAND, Outcome.REFUSED)
        self._spills = self._counter(
            "spills", "Requests sent elsewhere than where most of the prompt is cached.", "reason"
        )
        for reason in SpillReason:
            self._spills.labels(reason)
        self._seconds = Histogram(
            "decision_seconds",
            "Time from a whole question to its answer.",
            namespace=NAMESPACE,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rewrites = self._counter(
            "rewrites", "Requests whose prefix has them rewritten, by what came of it.", "result"
        )
        for result in RewriteResult:
            self._rewrites.labels(result)
        self._undeclared = self._counter(
            "undeclared", "Requests that stand for no prefix, by why.", "cause"
        )
        self._near_misses = self._counter(
            "near_misses", "Requests of the sample that came near a prefix, by why not.", "cause"
        )

    def _make_of_the_operator(self) -> None:
        self._endpoints = self._gauge("endpoints", "Endpoints of the pool.", "state")
        self._prefixes = self._gauge("prefixes", "Declared prefixes in the route table.")
        self._salt_conflicts = self._gauge(
            "salt_conflicts",
            "Tenants whose prefixes have different cache salts, and texts that do.",
        )
        self._syncs = self._counter(
            "route_syncs", "Answers and failures of the operator's route table.", "result"
        )
        self._show(
            "route_table_age_seconds",
            "Time since the operator last confirmed the route table.",
            lambda: self._clock() - self._confirmed_at,
        )
        self._reports = self._counter(
            "match_reports", "Reports of matches to the operator, and failures.", "result"
        )

    def _make_of_texts(self) -> None:
        self._fetches = self._counter(
            "text_fetches", "Answers and failures of the operator's declared texts.", "result"
        )
        self._texts = self._gauge("texts", "Declared texts of the route table.", "state")
        self._text_bytes = self._gauge("text_bytes", "Bytes of the declared texts that are kept.")

    def _make_of_envoy_and_engines(self) -> None:
        self._readings = self._counter("load_readings", "Readings of Envoy's load.", "result")
        self._names = self._gauge("header_names", "Names that Envoy resolves alone.")
        self._names_behind = self._gauge(
            "header_names_behind", "1 while Envoy resolves names by an earlier route table."
        )
        self._count_readings = self._counter(
            "header_readings", "Readings of how often Envoy resolved names alone.", "result"
        )
        self._engines = self._counter(
            "engine_readings", "Readings of the engines' own numbers of requests.", "result"
        )

    def in_force(self, mode: UndeclaredMode) -> None:
        """Show how undeclared prompts are routed."""
        for each in UndeclaredMode:
            self._modes.labels(each).set(each is mode)

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count one decision."""
        words = (decision.match or COMMAND, decision.outcome)
        count = self._decided.get(words)
        if count is None:
            count = self._decided[words] = self._decisions.labels(*words)
        count.inc()
        if decision.reason is not None:
            self._spills.labels(decision.reason).inc()
        self._seconds.observe(seconds)

    def rewrote(self, result: RewriteResult) -> None:
        """Count one request whose prefix has its requests rewritten."""
        self._rewrites.labels(result).inc()

    def resolved(self, outcome: Outcome, requests: int) -> None:
        """Count requests whose header Envoy resolved alone."""
        self._decisions.labels(MatchKind.HEADER, outcome).inc(requests)

    def resolved_by_envoy(self, names: int) -> None:
        """Show how many names Envoy resolves alone."""
        self._names.set(names)

    def names_behind(self, behind: bool) -> None:
        """Show whether Envoy resolves names by an earlier route table."""
        self._names_behind.set(behind)

    def read_counts(self, result: str) -> None:
        """Count one reading of what Envoy resolved alone; ``result`` is a fixed word."""
        self._count_readings.labels(result).inc()

    def published(self, routes: Routes) -> None:
        """Show the size of a new route table."""
        self._endpoints.labels("known").set(len(routes.endpoints))
        self._endpoints.labels("ready").set(sum(e.ready for e in routes.endpoints))
        self._endpoints.labels("rejected").set(routes.rejected)
        self._prefixes.set(routes.prefixes)
        self._salt_conflicts.set(routes.salt_conflicts)

    def synced(self, result: str) -> None:
        """Count one exchange with the operator; ``result`` is a fixed word."""
        self._syncs.labels(result).inc()

    def reported(self, result: str) -> None:
        """Count one report of matches; ``result`` is a fixed word."""
        self._reports.labels(result).inc()

    def fetched(self, result: str) -> None:
        """Count one answer or failure of the declared texts; ``result`` is a fixed word."""
        self._fetches.labels(result).inc()

    def keeping(self, texts: int, missing: int, size: int) -> None:
        """Show how many declared texts are kept and are missing, and the bytes of those kept."""
        self._texts.labels("kept").set(texts)
        self._texts.labels("missing").set(missing)
        self._text_bytes.set(size)

    def undeclared(self, cause: str) -> None:
        """Count a request that stands for no prefix; ``cause`` is a fixed word."""
        self._undeclared.labels(cause).inc()

    def looked(self, cause: str) -> None:
        """Count a request that was compared with the declared texts; ``cause`` is a fixed word."""
        self._near_misses.labels(cause).inc()

    def confirmed(self) -> None:
        """Note that the operator just confirmed the route table."""
        self._confirmed_at = self._clock()

    def read_engine(self, result: str) -> None:
        """Count one reading of an engine; ``result`` is a fixed word."""
        self._engines.labels(result).inc()

    def read_load(self, result: str) -> None:
        """Count one reading of Envoy's load; ``result`` is a fixed word."""
        self._readings.labels(result).inc()

    @property
    def ready(self) -> bool:
        """Whether the operator has sent a route table, or an earlier picker left Envoy a pool."""
        return math.isfinite(self._confirmed_at) or self._pool_known()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Serve ``/metrics``, ``/healthz`` and ``/readyz``."""
        if request.path == "/metrics":
            headers = (("content-type", CONTENT_TYPE_LATEST),)
            return HttpResponse(200, headers, generate_latest(self.registry))
        if request.path == "/healthz":
            return HttpResponse(200, (("content-type", "text/plain"),), b"ok\n")
        if request.path == "/readyz":
            if self.ready:
                return HttpResponse(200, (("content-type", "text/plain"),), b"ok\n")
            return HttpResponse(503, (("content-type", "text/plain"),), b"no route table yet\n")
        return HttpResponse(404)

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(name, text, labels.split(), namespace=NAMESPACE, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: str = "") -> Gauge:
        return Gauge(name, text, labels.split(), namespace=NAMESPACE, registry=self.registry)

    def _show(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._gauge(name, text).set_function(value)
