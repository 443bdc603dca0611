"""What the precise mode counts. Labels are fixed words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from promptprefix_router.metrics import NAMESPACE
from promptprefix_router.precise.pod_blocks import FeedState
from promptprefix_router.precise.token_request import Fallback

_FEEDS = ("whole", "ended", "silent", "unreachable", "refused", "invalid")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0)


class PreciseMetrics:
    """Counters and gauges of the precise mode, in the picker's registry."""

    def __init__(
        self,
        registry: CollectorRegistry,
        states: Callable[[], Mapping[FeedState, int]],
        blocks: Callable[[], int],
        dropped: Callable[[], int],
        waiting: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._decided = self._counter(
            "precise_decisions", "Undeclared requests that were sent by their tokens."
        )
        self._fallbacks = self._counter(
            "precise_fallbacks", "Undeclared requests sent by estimate instead, by why.", "reason"
        )
        for reason in Fallback:
            self._fallbacks.labels(reason)
        self._feeds = self._counter(
            "precise_feeds", "Feeds of blocks that became whole, or ended, by how.", "result"
        )
        for result in _FEEDS:
            self._feeds.labels(result)
        self._seconds = Histogram(
            "precise_token_seconds",
            "Time that requests waited for their tokens.",
            namespace=NAMESPACE,
            buckets=_SECONDS,
            registry=registry,
        )
        pods = self._gauge("precise_pods", "Pods with a feed of blocks, by its state.", "state")
        for state in FeedState:
            pods.labels(state).set_function(partial(_count, states, state))
        self._gauge("precise_blocks", "Names of blocks in the index.").set_function(blocks)
        self._gauge(
            "precise_blocks_dropped", "Names that had no room in the index, since the start."
        ).set_function(dropped)
        self._gauge("precise_waiting", "Requests that wait for their tokens now.").set_function(
            waiting
        )

    def known(self, seconds: float) -> None:
        """Count a request whose tokens came after so long."""
        self._decided.inc()
        self._seconds.observe(seconds)

    def fell_back(self, reason: Fallback) -> None:
        """Count a request that is sent by estimate."""
        self._fallbacks.labels(reason).inc()

    def heard(self, result: str) -> None:
        """Count a feed that became whole, or ended; ``result`` is a fixed word."""
        self._feeds.labels(result).inc()

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(name, text, labels.split(), namespace=NAMESPACE, registry=self._registry)

    def _gauge(self, name: str, text: str, labels: str = "") -> Gauge:
        return Gauge(name, text, labels.split(), namespace=NAMESPACE, registry=self._registry)


def _count(states: Callable[[], Mapping[FeedState, int]], state: FeedState) -> int:
    return states()[state]
