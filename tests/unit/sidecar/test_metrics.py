"""What the metrics page says of placements that come and go."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from promptprefix_sidecar.board import Board
from promptprefix_sidecar.metrics import Metrics
from promptprefix_sidecar.snapshot import Record

from .records import snapshot, warm


def version(number: int, hard: int, soft: int = 0, name: str = "triage") -> Record:
    record = warm(f"{name}-{number}")
    placement = record.placement.model_copy(update={"name": name})
    return replace(record, placement=placement, hard_evictions=hard, soft_evictions=soft)


def evictions(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["name"], sample.labels["pinning"]): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
        if sample.name == "promptprefix_sidecar_premature_evictions_total"
    }


def test_premature_evictions_never_fall_while_a_version_of_the_prefix_is_there() -> None:
    board, metrics = Board(), Metrics()
    metrics.watch(board)

    def hold(*records: Record) -> dict[tuple[str, str], float]:
        board.apply(lambda _: snapshot(*records))
        return evictions(metrics)

    assert hold(version(1, hard=3)) == {("triage", "Hard"): 3, ("triage", "Soft"): 0}
    assert hold(version(1, hard=3), version(2, hard=1))["triage", "Hard"] == 4
    assert hold(version(2, hard=2, soft=1)) == {("triage", "Hard"): 5, ("triage", "Soft"): 1}
    # The same version comes back as if it had never been there.
    assert hold(version(1, hard=1), version(2, hard=2, soft=1))["triage", "Hard"] == 6
    # Another resource has a series of its own, and a series goes with its last placement.
    assert hold(version(1, hard=7, name="other")) == {("other", "Hard"): 7, ("other", "Soft"): 0}
    assert hold(version(1, hard=2))["triage", "Hard"] == 2
