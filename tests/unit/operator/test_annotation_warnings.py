"""Annotations that can't be understood are told once."""

from __future__ import annotations

from promptprefix_operator.annotation_warnings import INVALID_ANNOTATION, notices
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.events import Notice
from promptprefix_operator.standing_warnings import StandingWarnings

WARM_NOW = "promptprefix.dev/warm-now"
UNPIN = "promptprefix.dev/unpin"


class Bench:
    """One resource whose annotations change."""

    def __init__(self) -> None:
        self.version = 0
        self.posted: list[Notice] = []
        self.cluster = Cluster(lambda: None)
        self.warnings = StandingWarnings(
            found=lambda: notices(self.cluster.resources),
            events=self,  # type: ignore[arg-type]
            clock=lambda: 0.0,
        )

    def post(self, notice: Notice) -> None:
        self.posted.append(notice)

    def annotate(self, **annotations: str) -> None:
        names = {"warm_now": WARM_NOW, "unpin": UNPIN}
        self.version += 1
        metadata = {
            "uid": "u-1",
            "namespace": "ml",
            "name": "a",
            "resourceVersion": str(self.version),
            "annotations": {names[key]: value for key, value in annotations.items()},
        }
        self.cluster.see_resource({"metadata": metadata, "spec": {}})
        self.warnings.step()


def test_an_unreadable_annotation_is_told_once() -> None:
    bench = Bench()
    bench.annotate(warm_now="now")
    bench.annotate(warm_now="today")
    [notice] = bench.posted
    assert (notice.type, notice.reason) == ("Warning", INVALID_ANNOTATION)
    assert (notice.subject.kind, notice.subject.name) == ("PromptPrefix", "a")
    assert WARM_NOW in notice.message
    assert notice.once


def test_each_annotation_is_told_of_and_again_after_it_was_mended() -> None:
    bench = Bench()
    bench.annotate(warm_now="now", unpin="now")
    bench.annotate(warm_now="true", unpin="2030-01-01T00:00:00Z")
    assert len({each.once for each in bench.posted}) == 2
    bench.annotate(warm_now="now")
    assert len(bench.posted) == 3


def test_what_is_understood_is_not_told_of() -> None:
    bench = Bench()
    bench.annotate(warm_now="true", unpin="false")
    assert bench.posted == []
