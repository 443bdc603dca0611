"""Metrics of the operator; a resource's series exist only as long as the resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_WARM_BUCKETS_S = (0.5, 1, 2, 3, 5, 8, 13, 21, 34, 60, 120, 300, 900)
_PLAN_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)


@dataclass(frozen=True)
class Warmth:
    """How far one resource is."""

    namespace: str
    name: str
    desired: int
    warm: int
    pinned: int


class Metrics:
    """All instruments, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"promptprefix_operator_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"promptprefix_operator_{name}", text, labels, registry=self.registry)

        self.apply_to_warm = _apply_to_warm(self.registry)
        self.plan_seconds = _plan_seconds(self.registry)
        self.plan_errors = counter(
            "plan_errors", "Plans that failed; the one before stays in force."
        )
        self.sync_requests = counter(
            "sync_requests",
            "Questions of sidecars by result: set, unchanged or the HTTP status of a refusal.",
            "result",
        )
        self.match_reports = counter(
            "match_reports",
            "Reports of matches by routers by result: taken, asked-again (everything is to be told "
            "to a new leader) or the HTTP status of a refusal.",
            "result",
        )
        self.matched_versions = gauge(
            "matched_versions", "Versions of texts whose matches are remembered."
        )
        self.connected_sidecars = gauge(
            "connected_sidecars", "Sidecars connected at the last plan."
        )
        self.status_writes = counter(
            "status_writes", "Writes of a resource's status by result: written or failed.", "result"
        )
        self.events = counter(
            "events",
            "Events by result: posted, failed (refused by the API server) or dropped (too many).",
            "result",
        )
        self.namespace_watched = gauge(
            "namespace_watched",
            "1 while a served namespace can be read and watched, else 0; the log says why.",
            "namespace",
        )
        self.cached_tokens = gauge(
            "cached_token_reviews", "Reviewed ServiceAccount tokens in the cache."
        )
        self.leader = gauge("leader", "1 while this replica leads, else 0.")
        self.leader_transitions = counter(
            "leader_transitions",
            "Changes of the leader that this replica saw, its own lead included.",
        )

    def watch_warmth(self, read: Callable[[], Iterable[Warmth]]) -> None:
        """Report what ``read`` returns at each scrape."""
        self.registry.register(_WarmthCollector(read))

    def watch_uninjected(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Report at each scrape the pods by namespace that ``read`` counts."""
        told = "Pods that ask for a sidecar by their label and that no webhook has looked at."
        name = "promptprefix_operator_uninjected_pods"
        self.registry.register(_CountCollector(name, told, read))

    def watch_silent_routers(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Report at each scrape the routers by namespace that ``read`` counts."""
        told = "Routers that serve a namespace and tell of no matches just now."
        name = "promptprefix_operator_silent_routers"
        self.registry.register(_CountCollector(name, told, read))


def _apply_to_warm(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "promptprefix_apply_to_warm_seconds",
        "From when a version of a resource is in force until it is warm on all its pods.",
        buckets=_WARM_BUCKETS_S,
        registry=registry,
    )


def _plan_seconds(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "promptprefix_operator_plan_seconds",
        "Time to observe, plan and publish once.",
        buckets=_PLAN_BUCKETS_S,
        registry=registry,
    )


class _CountCollector(Collector):
    """A gauge of numbers by namespace."""

    def __init__(self, name: str, told: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._name = name
        self._told = told
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._told, labels=["namespace"])
        for namespace, count in self._read().items():
            family.add_metric([namespace], count)
        yield family


class _WarmthCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[Warmth]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        labels = ["namespace", "name"]
        desired = GaugeMetricFamily(
            "promptprefix_desired_pods", "Pods that should hold the prefix.", labels=labels
        )
        warm = GaugeMetricFamily(
            "promptprefix_warm_pods", "Pods that hold the prefix warm.", labels=labels
        )
        pinned = GaugeMetricFamily(
            "promptprefix_pinned_pods", "Warm pods that can't evict the prefix.", labels=labels
        )
        for each in self._read():
            names = [each.namespace, each.name]
            desired.add_metric(names, each.desired)
            warm.add_metric(names, each.warm)
            pinned.add_metric(names, each.pinned)
        yield from (desired, warm, pinned)
