"""One page of metrics for all workers: what they count is summed, over their restarts as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from promptprefix_router.metrics import NAMESPACE

_COUNTED = ("counter", "histogram", "summary")

_PARTS = frozenset(
    f"{NAMESPACE}_{name}"
    for name in (
        "memo_entries",
        "history_chunks",
        "precise_waiting",
        "gateway_open_exchanges",
        "gateway_held_bytes",
    )
) | {"process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"}
"""Gauges of which each worker shows its part. Of all others the largest is told: they show the same
thing, and the worker that is furthest behind shows most."""

DECISIONS = f"{NAMESPACE}_decisions_total"

_Key = tuple[str, tuple[tuple[str, str], ...]]


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sorted(sample.labels.items()))


class Pages:
    """The last page of each worker, and what those counted that have ended."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Metric]] = {}
        self._ended: dict[str, Metric] = {}

    def keep(self, worker: int, page: str) -> None:
        """Take the page that a worker shows now. Raises `ValueError` if it is none."""
        self._pages[worker] = list(text_string_to_metric_families(page))

    def end(self, worker: int) -> None:
        """Go on with what a worker had counted that has ended; the next one begins at nothing."""
        for metric in self._pages.pop(worker, ()):
            if metric.type in _COUNTED:
                _join(self._ended, metric)

    def decisions(self) -> Mapping[int, float]:
        """Return how many decisions each worker has told of since it began."""
        return {
            worker: sum(
                sample.value
                for metric in page
                for sample in metric.samples
                if sample.name == DECISIONS
            )
            for worker, page in sorted(self._pages.items())
        }

    def joined(self, own: str) -> bytes:
        """Return one page of all of them, and of ``own``: that of the process they belong to."""
        joined: dict[str, Metric] = {}
        pages = (self._ended.values(), *self._pages.values(), text_string_to_metric_families(own))
        for page in pages:
            for metric in page:
                _join(joined, metric)
        registry = CollectorRegistry()
        registry.register(_Given(joined))
        return generate_latest(registry)


class _Given(Collector):
    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        """Give nothing: the names are known to differ."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        return iter(self._metrics.values())


def _join(into: dict[str, Metric], metric: Metric) -> None:
    known = into.get(metric.name)
    if known is None:
        known = into[metric.name] = Metric(metric.name, metric.documentation, metric.type)
    add = metric.type in _COUNTED or metric.name in _PARTS
    places = {_key(sample): at for at, sample in enumerate(known.samples)}
    for sample in metric.samples:
        at = places.get(_key(sample))
        if at is None:
            known.samples.append(sample)
            continue
        before = known.samples[at].value
        value = before + sample.value if add else max(before, sample.value)
        known.samples[at] = sample._replace(value=value)
