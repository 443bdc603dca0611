"""Prometheus metrics of the sidecar. Series of a prefix go with its placement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from promptprefix.wire import Phase
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.snapshot import PluginStatus, Record, Snapshot

PREFIX = "promptprefix_sidecar"
_LABELS = ("namespace", "name")
_EVICTIONS: tuple[tuple[str, Callable[[Record], int]], ...] = (
    ("Hard", lambda record: record.hard_evictions),
    ("Soft", lambda record: record.soft_evictions),
)


class Metrics:
    """The registry and what the sidecar counts itself. Label values are bounded sets of words."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.own_prompt_tokens = self._counter(
            "own_prompt_tokens",
            "Prompt tokens of the sidecar's own requests (warm-ups, touches, commands). The engine "
            "counts them too: subtract them from its numbers.",
        )
        self.own_computed_tokens = self._counter(
            "own_prompt_tokens_computed",
            "Prompt tokens that the engine computed for the sidecar's own requests.",
        )
        self.warm_ups = self._counter("warm_ups", "Warm-ups by outcome.", ("outcome",))
        self.warm_up_tokens = self._counter(
            "warm_up_tokens",
            "Tokens of finished warm-ups by where they came from: computed, or found in the cache "
            "that the engine names (device, host, disk, ...).",
            ("source",),
        )
        self.pin_failures = self._counter(
            "pin_failures", "Commands that the pin plugin refused, by its reason.", ("reason",)
        )
        self.sync_errors = self._counter(
            "sync_errors", "Failed requests to the control API, by kind.", ("kind",)
        )
        self.engine_restarts = self._counter("engine_restarts", "Restarts of the engine seen.")

    def watch(self, board: Board) -> None:
        """Export the state of the placements on ``board`` as well."""
        self.registry.register(_PlacementCollector(board))

    def page(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, tuple(labels), registry=self.registry)


class _Total:
    """The sum of counts of things that come and go: it never falls."""

    def __init__(self) -> None:
        self.value = 0
        self._last: Mapping[str, int] = {}

    def take(self, counts: Mapping[str, int]) -> int:
        """Return the sum after a look at the counts of what is there now; each only rises."""
        for key, count in counts.items():
            last = self._last.get(key, 0)
            self.value += count - last if count >= last else count
        self._last = counts
        return self.value


class _PlacementCollector(Collector):
    """Reads the board at each scrape, so nothing has to be removed when a placement goes.

    Two versions of one resource share a series: their tokens and evictions add up. What a version
    that is gone has lost stays counted.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._evictions: dict[tuple[str, str, str], _Total] = {}

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        snapshot = self._board.snapshot
        by_name: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in snapshot.records.values():
            by_name[record.placement.namespace, record.placement.name].append(record)
        yield from _engine_gauges(snapshot)
        yield _gauge(
            "warm", "Whether the prefix is warm.", by_name, lambda r: r.phase is Phase.WARM, any
        )
        yield _gauge(
            "released",
            "Whether the prefix is released: not to be held just now, and not held.",
            by_name,
            lambda r: r.phase is Phase.RELEASED,
            any,
        )
        yield _gauge(
            "resident_tokens",
            "Tokens of the prefix that are cached, by the engine's evidence.",
            by_name,
            lambda r: r.resident_tokens,
        )
        yield _gauge(
            "pinned_tokens",
            "Tokens of the prefix that can't be evicted.",
            by_name,
            lambda r: r.pinned_tokens,
        )
        yield _gauge(
            "warm_seconds",
            "Seconds that the last warm-up took.",
            by_name,
            lambda r: r.warm_seconds or 0.0,
            max,
        )
        yield self._evicted(by_name)

    def _evicted(self, by_name: Mapping[tuple[str, str], Sequence[Record]]) -> CounterMetricFamily:
        family = CounterMetricFamily(
            f"{PREFIX}_premature_evictions",
            "Times that a pinned prefix was found gone.",
            labels=(*_LABELS, "pinning"),
        )
        counts = {
            (*names, pinning): {record.id: count(record) for record in records}
            for names, records in by_name.items()
            for pinning, count in _EVICTIONS
        }
        self._evictions = {key: self._evictions.get(key) or _Total() for key in counts}
        for key, found in counts.items():
            family.add_metric(key, self._evictions[key].take(found))
        return family


def _engine_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    report = snapshot.plugin.report
    yield GaugeMetricFamily(
        f"{PREFIX}_engine_healthy",
        "Whether the engine answers its health check.",
        float(snapshot.engine.healthy),
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_engine_asleep",
        "Whether the engine was put to sleep.",
        float(snapshot.engine.asleep),
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_ready", "Whether the readiness gate is open.", float(snapshot.gate.open)
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_failed_open",
        "Whether the time limit opened the gate in this epoch of the engine.",
        float(snapshot.gate.failed_open),
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_hard_pins",
        "Whether the pin plugin takes our commands.",
        float(snapshot.plugin.status is PluginStatus.WORKING),
    )
    if report is not None:
        yield GaugeMetricFamily(
            f"{PREFIX}_pin_budget_blocks", "KV blocks that may be pinned.", report.budget_blocks
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_pinned_blocks", "KV blocks that are pinned.", report.blocks_pinned
        )


def _gauge(
    name: str,
    text: str,
    by_name: Mapping[tuple[str, str], Sequence[Record]],
    value: Callable[[Record], float],
    together: Callable[[Iterable[float]], float] = sum,
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=_LABELS)
    for names, records in by_name.items():
        family.add_metric(names, float(together(value(record) for record in records)))
    return family
